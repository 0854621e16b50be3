"""HTTP on port 8000: inference straight from the connection, everything else through FastAPI."""
