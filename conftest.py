"""What the tests need as a whole."""

import gc

from modserve.core import normalize
from modserve.testing.builders import RecordedInflight

normalize.Inflight = RecordedInflight  # type: ignore[misc]


def pytest_collection_finish() -> None:
    """Thousands of collected tests would be gone through at every full garbage collection: a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 50)
