"""Files of models: where they are, what lies below a directory, and their digests."""
