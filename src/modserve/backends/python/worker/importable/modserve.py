"""The part of modserve that decorated models need, for interpreters without modserve."""

import importlib
import sys

sys.modules[__name__] = importlib.import_module("modserve_worker.decorator")
