"""Stacks of the threads of this process, for people who look for what hangs."""

import sys
import threading
import traceback


def stacks() -> dict[str, list[str]]:
    """By the names and numbers of threads, where each is, innermost last. Compiled functions and native code have none.

    Reads the files of the source.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        f"{names.get(number, 'not of Python')} ({number})": [
            f"{frame.filename}:{frame.lineno} {frame.name}: {frame.line}" for frame in traceback.extract_stack(frame)
        ]
        for number, frame in sys._current_frames().items()
    }
