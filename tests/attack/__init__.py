"""What a hostile or broken client may send, and a server that must live through all of it."""
