"""From a model's configuration and files to a model that takes requests."""
