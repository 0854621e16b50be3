"""Commands other than `serve`, one module each. `table` lists them; only the one to run is imported."""
