"""``python -m modserve``, and the command ``modserve``."""

import faulthandler
import gc
import os
import signal
import sys


def start() -> None:
    """The command, from its first import on; the process ends here.

    Native code that crashes leaves the Python stack of each thread on standard error. So does SIGUSR1, also while the
    event loop or an import hangs, and the process goes on.

    Of what imports make nearly all stays, and the garbage collector would go through it again and again: a fifteenth of
    the time until the ports are open. `cli.run` turns it on.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as daemons are started
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - open as long as the process
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    gc.disable()
    from .cli import entry

    entry()


if __name__ == "__main__":
    start()
