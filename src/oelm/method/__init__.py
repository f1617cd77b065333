"""Apply a method: draw Q and K, freeze them, and repair the logits."""
