"""Standard output while a command loads models."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stdout_as_stderr() -> Iterator[None]:
    """What engines and models print meanwhile goes to standard error, not among what a command writes."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
