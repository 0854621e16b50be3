"""Where long loops let other threads run.

The interpreter hands its lock to a thread that waits for it between any two instructions. Compiled code has no such
places but where it calls what is interpreted, and would keep the event loop waiting until its loop is through.
"""


def yield_now() -> None:
    """Other threads run now, if one has waited for some milliseconds. This module stays interpreted: that is its use.

    For loops over as many elements as a client likes: every few milliseconds, which are about 32 K elements.
    """
