"""Commands that serve nothing, a module each. `table` lists them; the one that runs is imported, and no other."""
