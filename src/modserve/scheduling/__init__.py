"""When, and with whom, a request runs: rules as pure functions, and a thin loop on the event loop that applies them."""
