"""Process-wide things that requests borrow."""
