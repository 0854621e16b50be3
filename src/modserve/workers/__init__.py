"""Several processes behind the same ports: how they are started, and how they act as one server."""
