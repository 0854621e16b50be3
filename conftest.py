"""What the tests need as a whole."""

import gc


def pytest_collection_finish() -> None:
    """Thousands of collected tests would be gone through at every full garbage collection: a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 50)
