"""Records sampled requests with their responses in files, for ``modserve replay``."""
