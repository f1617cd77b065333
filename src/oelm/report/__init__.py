"""From comparisons to pages that people read."""
