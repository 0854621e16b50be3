"""What the tests need as a whole."""

import gc
import os
import signal

pytest_plugins = ["file_seconds"]

os.environ.setdefault("HYPOTHESIS_NO_PLUGINS", "1")  # else Hypothesis imports trio and schemathesis into every process


def pytest_configure() -> None:
    gc.disable()  # all that collection makes stays: the collector would go through it again and again in vain
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell ignores Ctrl-C for what it starts in the background, and so would every program that a test starts.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Thousands of collected tests would be gone through at every full garbage collection: a tenth of the time."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 50, 50)
