"""Several processes behind the same ports: how they act as one server."""
