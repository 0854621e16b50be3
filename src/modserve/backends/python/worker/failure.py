"""Descriptions of failures in a model's own code, for the caller and for the log."""

import os
import traceback
from types import FrameType, TracebackType
from typing import Iterable, Iterator, List, Optional, Tuple

from .errors import ErrorCode, ModelError, TritonError, TritonModelException

Place = Tuple[str, int, str]
"""A file, a line and the name of a function."""

_OURS = ("modserve.", "modserve_worker.")
"""Prefixes of the names of this project's modules, in the server and in a worker."""
_STANDARD_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INSTALLED = frozenset({"site-packages", "dist-packages"})
AT = "\n\nAt:\n"
"""Separator between a text and its places."""
_FRAMES = 20
_LENGTH = 4096
_TRACEBACK = 32 * 1024


class OwnFiles:
    """The files of one model: those in `directories`, but for libraries that are installed there.

    Clients get to know the names of these files from their directory on, and no other path of the server.
    """

    def __init__(self, directories: Iterable[str]) -> None:
        self._directories: List[str] = []
        for directory in directories:
            self.add(directory)

    def add(self, directory: str) -> None:
        self._directories.append(os.path.join(os.path.abspath(directory), ""))
        self._directories.sort(key=len, reverse=True)  # a version's directory before that of its model

    def add_module(self, file: str, name: str) -> None:
        """Add the file of a module with its name, and everything importable from its folder if it is not installed."""
        if not file or self.name(file) is not None:
            return
        directory = root = os.path.dirname(os.path.abspath(file))
        for _ in range(name.count(".")):
            root = os.path.dirname(root)
        self.add(directory if os.path.basename(root) in _INSTALLED else root)

    def name(self, file: str) -> Optional[str]:
        """Return a file's name for clients, such as ``model.py``; None for one that is not the model's."""
        for directory in self._directories:
            if file.startswith(directory) and not file.startswith(_STANDARD_LIBRARY):
                name = file[len(directory) :]
                if _INSTALLED.isdisjoint(name.split(os.sep)):
                    return name
        return None

    def among(self, places: Iterable[Place]) -> List[Place]:
        """Return the places in these files, by the clients' names."""
        named = [(self.name(file), line, function) for file, line, function in places]
        return [(file, line, function) for file, line, function in named if file is not None]


def of_exception(error: BaseException, before: str, own: Optional[OwnFiles] = None) -> ModelError:
    """Describe an exception of a model's code: `before`, the type and text, and the places, the innermost first.

    For operators (`own` is None) it is as in Triton, with all places except for this project's and importlib's.
    Clients see the places in a model's `own` files. A code that the model chose is kept.
    """
    if isinstance(error, ModelError):
        return error
    try:
        return _describe(error, before, own)
    except BaseException as failure:  # a class of the model's own may raise wherever it is looked at
        return ModelError(
            "INTERNAL", f"{before}{type(error).__name__}: <{type(failure).__name__} when it was described>"
        )


def _describe(error: BaseException, before: str, own: Optional[OwnFiles]) -> ModelError:
    code = error.code if isinstance(error, TritonModelException) else ErrorCode.INTERNAL
    if isinstance(error, TritonError):
        code = error._code
    try:
        code = ErrorCode(code)
    except ValueError:
        code = ErrorCode.INTERNAL
    text = _text(error)
    places = list(_places(error.__traceback__))
    if isinstance(error, SyntaxError) and error.filename:
        places.append((error.filename, error.lineno or 0, (error.text or "").strip()))
    if own is not None:
        places = own.among(places)
    places.reverse()
    lines = [f"  {file}({line}): {function}" for file, line, function in places[:_FRAMES]]
    at = AT + "\n".join(lines) + "\n" if lines else ""
    return ModelError(code.name, f"{before}{text}{at}", format_traceback(error))


def format_traceback(error: BaseException) -> str:
    """Return the traceback from the start of the model's code, without the middle of a very long one."""
    trace = error.__traceback__
    while trace is not None and _is_ours(trace.tb_frame):
        trace = trace.tb_next
    trace = trace or error.__traceback__
    try:
        text = "".join(traceback.format_exception(type(error), error, trace))
    except BaseException:  # its own __str__ may fail
        text = "".join(traceback.format_tb(trace))
    if len(text) > _TRACEBACK:
        text = f"{text[: _TRACEBACK // 2]}\n…\n{text[-_TRACEBACK // 2 :]}"
    return text


def _text(error: BaseException) -> str:
    try:
        text = f"{error.msg}" if isinstance(error, SyntaxError) else str(error)
    except BaseException as failure:
        text = f"<its text cannot be produced: {type(failure).__name__}>"
    if len(text) > _LENGTH:
        text = text[:_LENGTH] + "…"
    return f"{type(error).__name__}: {text}"


def _places(trace: Optional[TracebackType]) -> Iterator[Place]:
    while trace is not None:
        if not _is_ours(trace.tb_frame):
            code = trace.tb_frame.f_code
            yield code.co_filename, trace.tb_lineno, code.co_name
        trace = trace.tb_next


def _is_ours(frame: FrameType) -> bool:
    """Return True for code around the model's that does not explain failures: this project's, and that of imports."""
    file = frame.f_code.co_filename
    if file.startswith("<frozen importlib") or "importlib" in file.split(os.sep):
        return True
    return str(frame.f_globals.get("__name__", "")).startswith(_OURS)
