"""Models, and what each of them costs."""
