"""What models learn from their own traffic: run times, queue delays, ranges of lengths; and whom that refuses."""
