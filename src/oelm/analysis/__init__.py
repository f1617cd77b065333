"""From records to comparisons."""
