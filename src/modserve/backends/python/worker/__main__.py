"""The program of a worker process: ``python …/worker SOCKET SERVERS_MEMORY WORKERS_MEMORY LIFELINE READY``.

The arguments are file descriptors. This package may not be installed where the worker runs, so it is made importable by
the name ``modserve_worker`` from the folder of this file.
"""

import importlib
import importlib.util
import sys
from pathlib import Path


def _package() -> None:
    folder = Path(__file__).resolve().parent
    spec = importlib.util.spec_from_file_location(
        "modserve_worker", str(folder / "__init__.py"), submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["modserve_worker"] = module
    spec.loader.exec_module(module)
    # What Python has put there for this program would make the modules of this package importable by their bare names.
    sys.path[:] = [entry for entry in sys.path if entry != str(folder)]


if __name__ == "__main__":
    _package()
    descriptors = [int(argument) for argument in sys.argv[1:]]
    # As in Triton: a model.py may use argparse or unittest when it is imported, and these arguments are not for it.
    sys.argv[:] = [""]
    importlib.import_module("modserve_worker.main").main(*descriptors)
