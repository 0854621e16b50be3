"""Sessions: a model file with its options, its operator libraries and its execution providers."""

import itertools
import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnxruntime as ort

from modserve.core.errors import invalid

from ..api import ModelSource, Placement
from ..options import library_path
from . import builds, divisions, zipmap
from .divisions import GuardedModel
from .onnx_file import Pieces, has_external_weights, read_file
from .options import session_options, session_threads, threads_of
from .providers import CPU, RECORD, check, choose_providers, node_counts
from .zipmap import Labels

_log = logging.getLogger(__name__)

_EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"
_LARGE = 8 << 20
"""Bytes of a model of which an edited copy is made in a file rather than in memory."""
_NEWER = (
    f" It needs a newer version than ONNX Runtime {ort.__version__}: pip install --upgrade onnxruntime, "
    "or export it for an older opset."
)
_NO_OPERATOR = (
    " If a library has the operator, name it in model_operations { op_library_filename: … }. ONNX's "
    "own operators may need a newer ONNX Runtime."
)
_LOAD_HINTS = {
    "Protobuf parsing failed": " It is truncated or not an ONNX file.",
    "External data path": " The model's weights are in a separate file, which must be beside it.",
    "External initializer": " The file with the model's weights is truncated or belongs to another model.",
    "Unsupported model IR version": _NEWER,
    "only *guarantees* support": _NEWER,
    "is not a registered function/op": _NO_OPERATOR,
    "No Op registered for": _NO_OPERATOR,
    "Could not find an implementation": " This build has no code for that operator with these data types.",
}
"""Explanations of ONNX Runtime's messages, by a part of the message."""


@dataclass(frozen=True)
class OnnxSession:
    """An `ort.InferenceSession` with its properties."""

    session: ort.InferenceSession
    providers: tuple[str, ...]
    node_counts: Mapping[str, int]
    """Nodes by provider; empty if the CPU's is the only one, or ONNX Runtime is too old to report them."""
    threads: int
    """Number of its threads, including that of a running instance; 0 if it uses shared ones."""


class ModelFile:
    """Model file from which sessions are made."""

    def __init__(self, path: Path) -> None:
        self.path = path / "model.onnx" if path.is_dir() else path  # a directory holds external weights too
        self.labels: Mapping[str, Labels] = {}
        """Labels of the columns of outputs that the file has as dictionaries; known once the file was read."""
        self.divisions: GuardedModel | None = None
        """Findings about integer divisions, once the file was read: without the content."""
        self._guards = True
        """Divisions of integers get them, as far as is known."""

    @property
    def is_guarded(self) -> bool:
        """True if the content read is not the file's, but has guards."""
        return self.divisions is not None and self.divisions.count > 0

    def leave_unguarded(self) -> None:
        """Add no guards from now on: they do not fit."""
        self._guards = False
        if self.divisions is not None:
            self.divisions = GuardedModel([], 0, self.divisions.count + self.divisions.others)

    @contextmanager
    def reading(self) -> Iterator[str | bytes]:
        """Yield the path or the bytes that a session is made from: the file, or a copy of it with the server's edits.

        The edits put tensors in place of dictionaries, and guards before divisions of integers. A copy with large
        weights is a file meanwhile: of bytes, ONNX Runtime makes two more copies.
        """
        with ExitStack() as stack:
            as_it_is: str | bytes = str(self.path)
            yield read_file(self.path, partial(self._edit, stack), as_it_is)

    def _edit(self, stack: ExitStack, view: memoryview) -> str | bytes:
        flattened = zipmap.flatten_zipmaps(view)
        if flattened is not None:
            self.labels = flattened.labels
        guarded = None
        if self._guards:
            guarded = divisions.guard_divisions(view if flattened is None else flattened.content)
            self._guards = guarded is not None  # for the next session
        if guarded is not None:
            self.divisions = GuardedModel([], guarded.count, guarded.others)
            if guarded.count:
                return _copy(guarded.content, view, stack)
        return str(self.path) if flattened is None else flattened.content


def _copy(content: Pieces, original: memoryview, stack: ExitStack) -> str | bytes:
    """Return the path of a temporary file with this content, or the content: where small, or with weights beside it."""
    if len(original) < _LARGE or has_external_weights(original):
        return b"".join(content)
    try:
        file = tempfile.NamedTemporaryFile(prefix="modserve-", suffix=".onnx")  # noqa: SIM115 - the stack closes it
        stack.enter_context(file).writelines(content)
        file.flush()
    except OSError as error:  # as a text: its traceback would keep the model mapped
        _log.warning("a copy of a model of %d bytes is made in memory, not in a file: %s", len(original), str(error))
        return b"".join(content)
    return file.name


def open_session(source: ModelSource, file: ModelFile, placement: Placement, sharing: int) -> OnnxSession:
    """Open a session for `sharing` instances. Raises INVALID_ARG if it cannot be made, or lacks a provider."""
    config = source.config
    threads = threads_of(source)
    providers = choose_providers(config, placement, threads, sharing)
    options = session_options(source, sharing)
    if providers:
        options.add_session_config_entry(RECORD, "1")
    for name in config.operation_libraries:
        _register_operators(options, source, name)

    def make() -> ort.InferenceSession:
        with file.reading() as content:
            if isinstance(content, bytes):  # without a place of its own from which it could find weights
                options.add_session_config_entry(_EXTERNAL_FOLDER, str(file.path.parent))
            # With the fallback, ONNX Runtime would print what went wrong and try again without the provider.
            return ort.InferenceSession(content, options, providers=[*providers, CPU], enable_fallback=0)

    try:
        try:
            session = make()
        except Exception as error:
            if not file.is_guarded or divisions.is_constant_zero(text_of(error)):
                raise
            file.leave_unguarded()  # the guards may be to blame; else it fails again
            session = make()
    except Exception as error:  # ONNX Runtime's exceptions share no base class but this
        text = text_of(error)
        hint = next((hint for part, hint in _LOAD_HINTS.items() if part in text), "")
        reasons = (why for name, wishes in providers if (why := builds.why_unusable(name, wishes)))
        reason = "".join(f" ({why})" for why in itertools.islice(reasons, 1))
        raise invalid(f"failed to load model '{config.name}' from '{file.path}': {text}{reason}{hint}") from error
    check(session, providers, config, placement)
    counts = node_counts(session) if providers else {}
    for name, _ in providers:
        if counts and not counts.get(name):
            others = ", ".join(f"{other} {count}" for other, count in counts.items())
            _log.warning("model '%s': %s runs none of the graph's nodes; they run on: %s", config.name, name, others)
    return OnnxSession(session, tuple(session.get_providers()), counts, session_threads(source, sharing))


def _register_operators(options: ort.SessionOptions, source: ModelSource, name: str) -> None:
    """Add the operators of a library to a session. Raises INVALID_ARG."""
    path = library_path(name, source)
    try:
        options.register_custom_ops_library(path)
    except Exception as error:  # as above
        raise invalid(
            f"model '{source.config.name}': the operator library '{name}' (model_operations.op_library_filename) "
            f"cannot be used: {text_of(error)}. The path must be absolute, or relative to the server's working "
            "directory, the version's or the model's directory. The system also finds a name without a path, for "
            "instance in LD_LIBRARY_PATH"
        ) from error


def text_of(error: Exception) -> str:
    return " ".join(str(error).split())
