"""Engines that run models. `api` is the plug-in interface, `registry` finds plug-ins."""
