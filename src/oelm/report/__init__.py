"""Turn comparisons into reports for readers."""
