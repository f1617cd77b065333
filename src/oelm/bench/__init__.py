"""Measurements of speed and memory against what people use otherwise."""
