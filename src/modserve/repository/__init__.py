"""Which model versions should be loaded, and are."""
