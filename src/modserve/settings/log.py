"""The options of log lines and request ids."""

from typing import Any

from .options import option

FORMAT: Any = option("ISO8601", "Format of log lines; default is Triton's, json writes an object per line.")
FILE: Any = option("", "File for log lines, instead of standard error; SIGHUP reopens it.")

MULTILINE: Any = option(
    "auto",
    "Write tracebacks in the format ISO8601 on separate, indented lines; auto: on a terminal only; false: in the "
    "message's line.",
)
ACCESS_LOG: Any = option(
    "errors",
    "Requests to log: errors: failed ones, at most ten per second; sampled: also one of --access-log-rate; all; off: "
    "none.",
)
ACCESS_LOG_RATE: Any = option(100, "Log one of this many requests with --access-log=sampled.")
AUDIT_LOG: Any = option(
    "",
    "File for a line of JSON about each call that changes what is served or how, refused ones too; SIGHUP reopens it; "
    "log: the log.",
    value="FILE|log",
)
REQUEST_IDS: Any = option(
    "needed",
    "Requests that get an X-Request-ID if their client sends none: needed: those in the log; all.",
)
