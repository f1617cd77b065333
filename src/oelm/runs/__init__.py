"""Runs as processes and directories."""
