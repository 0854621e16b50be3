"""The options of log lines and of what requests are called in them."""

from typing import Any

from .options import option

FORMAT: Any = option("ISO8601", "How log lines look; default is Triton's way, json is an object a line.")
FILE: Any = option(
    "", "File to which log lines are added, in place of standard error; SIGHUP opens it anew under its name."
)

MULTILINE: Any = option(
    "auto",
    "Give tracebacks lines of their own, indented, in the format ISO8601; auto: on a terminal only. Otherwise each "
    "message is one line.",
)
ACCESS_LOG: Any = option(
    "errors",
    "Requests that are logged: errors: those that fail, at most ten a second; sampled: also one of --access-log-rate; "
    "all; off: none.",
)
ACCESS_LOG_RATE: Any = option(100, "Log one of so many requests with --access-log=sampled.")
REQUEST_IDS: Any = option(
    "needed",
    "Requests that get an X-Request-ID if their client sends none: needed: those that the log says something about; "
    "all.",
)
