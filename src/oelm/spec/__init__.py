"""The vocabulary: what a method, a model, a corpus, a training and a run are, as values."""
