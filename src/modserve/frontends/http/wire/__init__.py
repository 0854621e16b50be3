"""HTTP/1.1 on sockets: what comes in, how it is understood, and how responses leave."""
