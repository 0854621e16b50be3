"""Version routing: which READY version of a model takes a request that names none, and names for versions."""
