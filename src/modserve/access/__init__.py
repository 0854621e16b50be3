"""Who may call the server: keys, tokens and certificates; what each may do; and what every call needs."""
