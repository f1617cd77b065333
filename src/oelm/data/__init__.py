"""Prepare data: from text to tokens to batches."""
