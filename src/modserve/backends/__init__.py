"""Engines: what runs a model. `api.py` is the plug-in interface, `registry.py` finds plug-ins."""
