"""Loaded model versions: put together from configuration, engine, instances and scheduler, and serving."""
