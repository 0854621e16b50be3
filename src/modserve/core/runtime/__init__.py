"""Event loop, threads and memory that the whole process shares."""
