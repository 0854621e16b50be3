"""What the unit suite needs as a whole."""

import gc


def pytest_collection_finish() -> None:
    """Thousands of collected tests would be gone through at every full garbage collection: a tenth of the time."""
    gc.collect()
    gc.freeze()
