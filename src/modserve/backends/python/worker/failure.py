"""Describes failures in a model's own code, for the caller and for the log."""

import os
import traceback
from types import TracebackType
from typing import Iterator, Optional, Tuple

from .errors import ErrorCode, ModelError, TritonError, TritonModelException

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
AT = "\n\nAt:\n"
"""What comes between a text and its places."""
_FRAMES = 20
_LENGTH = 4096
_TRACEBACK = 32 * 1024


def of_exception(error: BaseException, before: str) -> ModelError:
    """An exception of a model's code, as Triton tells it: `before`, the type and text, and where, the innermost first.

    Frames of this package are left out, and so is importlib. A code that the model chose is kept.
    """
    if isinstance(error, ModelError):
        return error
    code = error.code if isinstance(error, TritonModelException) else ErrorCode.INTERNAL
    if isinstance(error, TritonError):
        code = error._code
    text = _text(error)
    places = list(_places(error.__traceback__))
    if isinstance(error, SyntaxError) and error.filename:
        places.append((error.filename, error.lineno or 0, (error.text or "").strip()))
    places.reverse()
    lines = [f"  {file}({line}): {function}" for file, line, function in places[:_FRAMES]]
    at = AT + "\n".join(lines) + "\n" if lines else ""
    return ModelError(code.name, f"{before}{text}{at}", formatted(error))


def formatted(error: BaseException) -> str:
    """The whole of the traceback, but for the middle of a very long one."""
    try:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception:  # its own __str__ may fail
        text = "".join(traceback.format_tb(error.__traceback__))
    if len(text) > _TRACEBACK:
        text = f"{text[: _TRACEBACK // 2]}\n…\n{text[-_TRACEBACK // 2 :]}"
    return text


def _text(error: BaseException) -> str:
    try:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
    except Exception as failure:
        text = f"<its text cannot be produced: {type(failure).__name__}>"
    if len(text) > _LENGTH:
        text = text[:_LENGTH] + "…"
    return f"{type(error).__name__}: {text}"


def _places(trace: Optional[TracebackType]) -> Iterator[Tuple[str, int, str]]:
    while trace is not None:
        code = trace.tb_frame.f_code
        file = code.co_filename
        if not (file.startswith((_HERE, "<frozen importlib")) or "importlib" in file.split(os.sep)):
            yield file, trace.tb_lineno, code.co_name
        trace = trace.tb_next
