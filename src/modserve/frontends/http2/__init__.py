"""HTTP/2 on a transport of asyncio (RFC 9113), for any protocol over it: see `connection`."""
