"""``python -m modserve``, and the command ``modserve``."""

import gc


def start() -> None:
    """The command, from its first import on; the process ends here.

    Of what imports make nearly all stays, and the garbage collector would go through it again and again: a fifteenth of
    the time until the ports are open. `cli.run` turns it on.
    """
    gc.disable()
    from .cli import entry

    entry()


if __name__ == "__main__":
    start()
