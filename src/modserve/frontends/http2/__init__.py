"""HTTP/2 on a transport of asyncio (RFC 9113), for whatever is served over it: see `connection`."""
