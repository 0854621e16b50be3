"""The REST surface: an ASGI application, for everything that does not take the short cut of inference."""
