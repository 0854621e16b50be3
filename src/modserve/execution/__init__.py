"""How a batch runs: merged, executed on an instance's own thread, split, and handed back."""
