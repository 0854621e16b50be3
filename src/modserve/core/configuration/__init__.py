"""The configurations of models, and the server's settings that can be changed while it runs, as frozen values."""
