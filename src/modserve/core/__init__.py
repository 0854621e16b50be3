"""Values and pure rules: no tasks, no I/O, no clock (time is an argument)."""
