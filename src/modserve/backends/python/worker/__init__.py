"""The code in the worker process of a Python model, and in the server for models that run in a thread there.

This package imports numpy and the standard library alone, by relative names only, and is written for Python 3.8 and
later: a worker may run another interpreter than the server, which has no modserve. There it is called
``modserve_worker``; in the server it is ``modserve.backends.python.worker``.
"""
