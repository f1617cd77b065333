"""The results page: what a folder of runs holds, shown while it is written."""
