"""Protocol servers: sockets in, sockets out. A handler decodes, calls the server, encodes."""
