"""What is said when a port cannot be opened."""

import contextlib
import errno
from collections.abc import Iterator


class PortError(Exception):
    """A port cannot be opened; the text says which, why, and which option changes that."""


_ADVICE = {
    errno.EADDRINUSE: "the port is in use, perhaps by another server; '--{0}-port' chooses another one",
    errno.EACCES: "this user may not open it; '--{0}-port' chooses another one",
    errno.EADDRNOTAVAIL: "this machine does not have that address; '--{0}-address' chooses another one",
}


@contextlib.contextmanager
def opening(name: str, address: str, port: int) -> Iterator[None]:
    """Raises PortError for the OSError with which a port of the front end `name` is refused."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0) or f"{error}; see '--{{0}}-address' and '--{{0}}-port'"
        place = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        raise PortError(f"cannot open the {name} port {place}: {advice.format(name.lower())}") from error
