"""The method: what is drawn into Q and K, what is frozen, and when."""
