"""The program of a worker process: ``python …/worker SOCKET SERVERS_MEMORY WORKERS_MEMORY LIFELINE READY``.

The arguments are file descriptors. This package may not be installed where the worker runs, so it is made importable by
the name ``modserve_worker`` from the folder of this file.
"""

import importlib
import sys
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent


def _make_importable() -> None:
    # What Python has put there for this program would make the modules of this package importable by their bare names.
    sys.path[:] = [entry for entry in sys.path if entry != str(_FOLDER)]
    # Last, so that it hides nothing. Processes that the model starts by multiprocessing get this path, too.
    sys.path.append(str(_FOLDER / "importable"))


if __name__ == "__main__":
    _make_importable()
    descriptors = [int(argument) for argument in sys.argv[1:]]
    # As in Triton: a model.py may use argparse or unittest when it is imported, and these arguments are not for it.
    sys.argv[:] = [""]
    importlib.import_module("modserve_worker.main").main(*descriptors)
