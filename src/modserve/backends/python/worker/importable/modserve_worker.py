"""The package of the worker program, where modserve may not be installed: the folder above this one.

It is a file, so that processes which the model starts by multiprocessing can import it: they get the worker's
``sys.path``, but none of its modules, and objects of the API are pickled by this name.
"""

import sys
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path

__path__ = [str(Path(__file__).resolve().parents[1])]
# Extension modules that stand beside the source are the server's: they import modserve.
sys.path_importer_cache[__path__[0]] = FileFinder(__path__[0], (SourceFileLoader, SOURCE_SUFFIXES))
