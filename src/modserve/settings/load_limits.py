"""Options for how much requests may hold, how many may be in flight, and how long they may run."""

from typing import Literal

from .options import option

REQUEST_MEMORY: int | None = option(
    None,
    "Bytes that all requests together may hold; 0: no limit.",
    section="limits and memory",
    default_in_words="half of the memory",
)
MAX_ACCEPTED: int = option(
    0,
    "Requests that may be in flight; above that, new ones are refused. 0: no limit. A model's parameter "
    "limits.max_accepted_requests sets its own.",
)
EXECUTION_SECS: int = option(
    600,
    "Seconds after which an execution is given up: its requests fail, and its instance is replaced. Each response of a "
    "decoupled model begins the time anew. 0: never. A model's parameter limits.execution_timeout_ms overrides it.",
)
RATE_LIMIT: Literal["off", "execution_count"] = option(
    "off",
    "execution_count: an execution waits for the resources in its instance_group's rate_limiter, and instances "
    "take turns by priority; off: no limit.",
    value="off|execution_count",
)
