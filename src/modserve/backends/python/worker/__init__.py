"""The code in the worker process of a Python model, and in the server for models that run in a thread there.

This package imports numpy and the standard library alone, by relative names only, and is written for Python 3.8 and
later: a worker may run another interpreter than the server, which has no modserve. There it is called
``modserve_worker``; in the server it is ``modserve.backends.python.worker``.
"""

import sys
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader

if __name__ == "modserve_worker":
    # Extension modules that stand beside the source are the server's: they import modserve.
    sys.path_importer_cache[__path__[0]] = FileFinder(__path__[0], (SourceFileLoader, SOURCE_SUFFIXES))
