"""What a run leaves behind; readable without torch."""
