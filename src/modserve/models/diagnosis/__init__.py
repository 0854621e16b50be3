"""What is said about files that are no models, and about models that do not load."""
