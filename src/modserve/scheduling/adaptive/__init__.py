"""What a model learns from its own traffic: run times, queue delays and ranges of lengths."""
