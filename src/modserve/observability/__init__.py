"""Logs and metrics: readers of what the server keeps anyway."""
