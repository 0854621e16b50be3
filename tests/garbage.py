"""What only Python's garbage collector could free: reference cycles that nobody holds any more."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def garbage_left() -> Iterator[list[object]]:
    """The list has at the end what was made inside the block, and left there as garbage.

    What was there before is set aside: neither is it found, nor does the collector go through it. That is a hundred
    thousands of objects, and a tenth of a second a test.
    """
    found: list[object] = []
    gc.collect(1)  # what the last test has left
    gc.freeze()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
