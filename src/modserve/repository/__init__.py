"""Where models come from, which of their versions should be served, and which are."""
