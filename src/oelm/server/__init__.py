"""The results page: a live view of a folder of runs."""
