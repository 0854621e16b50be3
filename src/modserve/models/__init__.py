"""A loaded model version, put together from configuration, engine, instances and scheduler."""
