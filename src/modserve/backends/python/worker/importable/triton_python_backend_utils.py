"""The API by Triton's name, for processes that the model starts by multiprocessing."""

import importlib
import sys

sys.modules[__name__] = importlib.import_module("modserve_worker.triton_python_backend_utils")
