"""What the tests need as a whole."""

import gc
import os

os.environ.setdefault("HYPOTHESIS_NO_PLUGINS", "1")  # else Hypothesis imports trio and schemathesis into every process


def pytest_configure() -> None:
    """All that collection makes stays: the garbage collector would go through it again and again in vain."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Thousands of collected tests would be gone through at every full garbage collection: a tenth of the time."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 50, 50)
