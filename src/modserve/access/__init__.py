"""Access control: keys, tokens and certificates; what each may do; and the permission that every call needs."""
