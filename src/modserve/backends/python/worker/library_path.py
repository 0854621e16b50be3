"""Library search path of other programs, if the worker's interpreter has an environment of its own."""

import os

NAME = "LD_LIBRARY_PATH"
ORIGINAL = "MODSERVE_WORKER_LD_LIBRARY_PATH"
"""Variable with the value of `NAME` from before the environment's libraries were put first, or empty. For `restore`."""


def restore() -> None:
    """Put the server's library path back: programs that the model starts must not get the environment's libraries.

    To be called once, when the worker begins: the loader of this process has read the variable by then. As Triton's
    stub does.
    """
    original = os.environ.pop(ORIGINAL, None)
    if original:
        os.environ[NAME] = original
    elif original is not None:
        os.environ.pop(NAME, None)
