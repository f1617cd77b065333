"""The published study: its figures and claims, the ledger of verdicts, and importers of its runs and checkpoints."""
