"""Stacks of this process's threads, to diagnose hangs."""

import sys
import threading
import traceback


def stacks() -> dict[str, list[str]]:
    """Return the stack of each thread by its name and number, innermost last, without compiled or native functions.

    Reads the files of the source.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        f"{names.get(number, 'not of Python')} ({number})": [
            f"{frame.filename}:{frame.lineno} {frame.name}: {frame.line}" for frame in traceback.extract_stack(frame)
        ]
        for number, frame in sys._current_frames().items()
    }
