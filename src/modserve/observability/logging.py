"""Log lines: time, level, where, what, on standard error."""

import logging
import sys
import time

_FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s: %(message)s"


def configure(*, verbose: int = 0, info: bool = True, warning: bool = True, error: bool = True) -> None:
    """Log what is switched on, as tritonserver's log options say it; a level of `verbose` above 0 means debugging."""
    formatter = logging.Formatter(_FORMAT, "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    wanted = {logging.INFO: info, logging.WARNING: warning, logging.ERROR: error, logging.CRITICAL: error}
    handler.addFilter(lambda record: wanted.get(record.levelno, verbose > 0))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if verbose else logging.INFO)
    # Others' chatter about every connection is nobody's idea of verbose.
    for name in ("asyncio", "uvicorn", "grpc"):
        logging.getLogger(name).setLevel(logging.WARNING)
