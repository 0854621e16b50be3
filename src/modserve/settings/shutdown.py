"""Options for how a server stops."""

from .options import option

EXIT_SECS: int = option(30, "Seconds that a stopping server waits for requests in flight.")
DELAY_SECS: int = option(
    0,
    "Seconds in which a stopping server is not ready and still takes new requests, so that load balancers turn away "
    "from it first.",
)
