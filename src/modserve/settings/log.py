"""The options of log lines and request ids."""

from typing import Annotated, Any

from pydantic import AfterValidator

from modserve.core.requests.origin import network_of

from .options import option


def _network(text: str) -> str:
    network_of(text)
    return text


Proxy = Annotated[str, AfterValidator(_network)]

FORMAT: Any = option("ISO8601", "Format of log lines: default is Triton's; json: an object per line.")
FILE: Any = option("", "File for log lines, instead of standard error; SIGHUP reopens it.")

MULTILINE: Any = option(
    "auto",
    "Write tracebacks in format ISO8601 on separate lines; auto: only on a terminal; false: in the message's line.",
)
ACCESS_LOG: Any = option(
    "errors",
    "Requests to log: errors: failed ones, at most ten per second; sampled: also one of --access-log-rate; all; off.",
)
ACCESS_LOG_RATE: Any = option(100, "Log one of this many requests with --access-log=sampled.")
PROXIES: Any = option(
    (),
    "Proxies whose X-Forwarded-For or Forwarded names the client in the logs; repeatable.",
    value="ADDRESS|NETWORK",
    several=True,
    default_in_words="none",
)
AUDIT_LOG: Any = option(
    "",
    "File for a JSON line about each call that changes what is served or how; SIGHUP reopens it; log: the log.",
    value="FILE|log",
)
REQUEST_IDS: Any = option(
    "needed",
    "Requests that get an ID if they have no X-Request-ID: needed: those that are logged; all.",
)
