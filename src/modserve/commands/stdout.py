"""Standard output while a command loads models."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stdout_as_stderr() -> Iterator[None]:
    """Redirect standard output to standard error, for what engines and models print."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
