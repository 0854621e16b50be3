"""A server process: its composition, its ports, its metrics page, and the supervisor above it."""
