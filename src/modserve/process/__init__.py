"""What a server process is: how it is put together, its ports and its metrics page, and the processes above it."""
