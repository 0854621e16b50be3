"""Loaded models: what takes their requests, and what stands before it or is asked about it."""
