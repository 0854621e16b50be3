"""PyTorch's failures as one line for clients. Needs no PyTorch."""

import re

from modserve.core.errors import ModserveError, internal

from .. import gpu_failures
from ..api import refused

_LONGEST = 400
_SCRIPT = "in the TorchScript interpreter"
_LAST_ERROR = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception): ", re.MULTILINE)
"""Start of the exception's own message, after the traceback of TorchScript."""
_STACK = re.compile(
    r"\n(Exception raised from |frame #\d+|The above operation failed|Set TORCH|You can suppress).*", re.DOTALL
)
"""PyTorch's additions for debugging."""

_CHATTER = re.compile(r" ?\(Could this error message be improved\?[^)]*\)")

_OUT_OF_MEMORY = re.compile(r"can't allocate memory|not enough memory|out of memory|bad_alloc", re.IGNORECASE)


def one_line(text: str) -> str:
    """Return the final message of a PyTorch text, without tracebacks."""
    if _SCRIPT in text:
        ends = [match.end() for match in _LAST_ERROR.finditer(text)]
        if ends:
            text = text[ends[-1] :]
    line = _CHATTER.sub("", " ".join(_STACK.sub("", text).split()))
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


def of_execution(error: Exception) -> ModserveError:
    """Return INTERNAL, as for any engine that cannot run a request; `InstanceLostError` if a GPU has failed."""
    text = str(error)
    if (lost := gpu_failures.find_loss(text)) is not None:
        return lost
    kind, line = type(error).__name__, one_line(text) or type(error).__name__
    if (
        isinstance(error, MemoryError)
        or kind == "OutOfMemoryError"
        or _OUT_OF_MEMORY.search(text)
        or gpu_failures.is_full(text)
    ):
        return internal(f"pytorch has not enough memory: {line}; smaller batches need less")
    return refused("pytorch", line)
