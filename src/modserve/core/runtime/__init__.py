"""What the process's event loop, threads and memory have in common for everybody."""
