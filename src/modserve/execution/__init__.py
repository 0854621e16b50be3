"""Execution of batches: merges requests, runs them on an instance's own thread, splits the outputs and returns them."""
