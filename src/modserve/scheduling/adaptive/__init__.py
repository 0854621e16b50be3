"""Learning from a model's own traffic: run times, queue delays and ranges of lengths."""
