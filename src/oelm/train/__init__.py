"""Training: one loop, read top to bottom."""
