"""Loading: turns a model's configuration and files into a model that takes requests."""
