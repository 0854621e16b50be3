"""The Python API: clients of a server or of models in this process, and a server inside another application."""
