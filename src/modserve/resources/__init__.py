"""Process-wide resources that requests borrow."""
