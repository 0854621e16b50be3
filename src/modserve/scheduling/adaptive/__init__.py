"""Learning from a model's own traffic: run times and ranges of lengths."""
