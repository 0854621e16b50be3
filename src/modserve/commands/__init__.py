"""The commands beside `serve`, one module each. `table` lists them; only the one that runs is imported."""
