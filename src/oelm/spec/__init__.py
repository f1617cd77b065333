"""Specs: methods, models, data, training, runs and studies as immutable, hashable values. Nothing here needs torch."""
