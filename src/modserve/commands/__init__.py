"""Commands that serve nothing, a module each. `cli` imports the one that runs, and nothing else does."""
