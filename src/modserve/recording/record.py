"""A recorded request with its outcomes, and its JSON line in a file.

The first line of a file is its head; every other line is one request. A line is complete if it ends with a newline.
Numbers are the protocol's raw form in base64, exact to the last bit; BYTES tensors are strings where possible.

Files of recorded requests: ``FOLDER/<model>/<time of its first request>-w<worker>.jsonl``.

All files together have a size limit: the oldest are deleted first, regardless of the model. A file is opened for each
line, so that it may be removed or moved away. A partly written line is truncated again. Files of earlier server
processes count, and are deleted first.
"""

import json
import math
import os
import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from modserve.core.errors import Code
from modserve.core.requests.request import ParameterValue
from modserve.core.runtime.event_loop import yield_now
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Shape, Tensor, TruncatedError, encode_elements

FORMAT: Final = 1
_KEY: Final = "modserve_record"
_PIECE: Final = 3 * 64 * 1024
"""Bytes encoded at a time, while no other thread runs; base64 turns 3 bytes into 4 characters."""
_MOST_TEXT: Final = 1024 * 1024
"""Maximum size in bytes of a BYTES tensor written as strings."""


_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))


class FormatError(ValueError):
    """A line that is not a record, or has another format. The text has the reason."""


class RecordedTensor(NamedTuple):
    """A recorded tensor. `content` is None if it is redacted."""

    datatype: Datatype
    shape: Shape
    content: Tensor | None

    @property
    def is_sound(self) -> bool:
        """True if the content agrees with datatype and shape. Inputs of refused requests may contain anything."""
        if self.datatype is dtypes.INVALID or any(size < 0 for size in self.shape):
            return False
        count = math.prod(self.shape)
        try:
            return self.content is None or (
                len(self.content.raw) == count * self.datatype.size
                if self.datatype.size
                else self.content.count_elements() == count
            )
        except TruncatedError:
            return False


@dataclass(slots=True, eq=False)
class RecordedOutcome:
    """A response, a failure (`code` and `message`), or neither for an end without a response."""

    after_us: float
    """Microseconds since the arrival of the request."""
    version: int | None = None
    outputs: Mapping[str, RecordedTensor] | None = None
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    code: Code | None = None
    message: str = ""


@dataclass(slots=True, eq=False)
class RequestRecord:
    """A recorded request. `number` counts the sampled requests of a model in one server process, including unrecorded
    ones.

    `at_us`: arrival, in microseconds since the epoch. `left_out`: names of omitted parameters that may have been
    headers. `cut`: outcomes are missing.
    """

    model: str
    number: int
    at_us: int
    version: int | None
    inputs: Mapping[str, RecordedTensor]
    requested: tuple[str, ...] = ()
    id: str = ""
    tenant: str = ""
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    decoupled: bool = False
    outcomes: list[RecordedOutcome] = field(default_factory=list)
    cut: bool = False


@dataclass(frozen=True, slots=True)
class FileHead:
    """Head of a file. `run` distinguishes server processes."""

    model: str
    run: str
    server: str


# Writing


def head_line(head: FileHead) -> bytes:
    return _dumps({_KEY: FORMAT, "model": head.model, "run": head.run, "server": head.server}) + b"\n"


def encode(record: RequestRecord) -> Iterator[bytes]:
    """Yield the line of a record in pieces."""
    head: dict[str, Any] = {"n": record.number, "at": _timestamp(record.at_us), "version": record.version}
    for key, value in (
        ("id", record.id),
        ("tenant", record.tenant),
        ("parameters", record.parameters),
        ("left_out", record.left_out),
        ("requested", record.requested),
        ("decoupled", record.decoupled),
        ("cut", record.cut),
    ):
        if value:
            head[key] = value
    yield _dumps(head)[:-1] + b',"inputs":'
    yield from _tensors(record.inputs)
    yield b',"outcomes":['
    for index, outcome in enumerate(record.outcomes):
        if index:
            yield b","
        yield from _outcome(outcome)
    yield b"]}\n"


def _outcome(outcome: RecordedOutcome) -> Iterator[bytes]:
    head: dict[str, Any] = {"after_us": round(outcome.after_us, 1)}
    if outcome.code is not None:
        head["error"] = {"code": outcome.code.name, "message": outcome.message}
    if outcome.outputs is None:
        yield _dumps(head)
        return
    head["version"] = outcome.version
    if outcome.parameters:
        head["parameters"] = outcome.parameters
    yield _dumps(head)[:-1] + b',"outputs":'
    yield from _tensors(outcome.outputs)
    yield b"}"


def _tensors(tensors: Mapping[str, RecordedTensor]) -> Iterator[bytes]:
    between = b"["
    for name, (datatype, shape, content) in tensors.items():
        yield between + _dumps({"name": name, "datatype": datatype.name, "shape": shape})[:-1]
        between = b","
        if content is None:
            yield b',"redacted":true}'
        elif (texts := _texts(content)) is not None:
            yield b',"texts":' + json.dumps(texts, ensure_ascii=False).encode() + b"}"
        else:
            yield b',"base64":"'
            raw = memoryview(content.raw)
            for start in range(0, len(raw), _PIECE):
                yield b2a_base64(raw[start : start + _PIECE], newline=False)
                yield_now()
            yield b'"}'
    yield b"[]" if between == b"[" else b"]"


def _texts(tensor: Tensor) -> list[str] | None:
    if tensor.datatype is not dtypes.BYTES or tensor.size > _MOST_TEXT:
        return None
    try:
        return [element.decode() for element in tensor.array.reshape(-1).tolist()]
    except ValueError:  # not UTF-8, or inconsistent with its shape
        return None


def _dumps(value: object) -> bytes:
    return _ENCODER.encode(value).encode()


def _timestamp(us: int) -> str:
    moment = datetime.fromtimestamp(us // 1_000_000, UTC).replace(microsecond=us % 1_000_000)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


# Reading


def read_head(line: bytes) -> FileHead:
    """Parse the head of a file. Raises FormatError."""
    document = _loads(line)
    if _KEY not in document:
        raise FormatError(f"it does not begin with a line that has '{_KEY}': it is no file of '--record'")
    if document[_KEY] != FORMAT:
        raise FormatError(f"its format is {document[_KEY]!r}, and this version of modserve reads format {FORMAT}")
    return FileHead(str(document.get("model")), str(document.get("run")), str(document.get("server")))


def decode(line: bytes, model: str) -> RequestRecord:
    """Parse a line in a file of `model`, with checks of its outputs. Raises FormatError."""
    document = _loads(line)
    try:
        return RequestRecord(
            model,
            int(document["n"]),
            round(datetime.fromisoformat(document["at"]).timestamp() * 1_000_000),
            document["version"],
            _read_tensors(document["inputs"]),
            tuple(document.get("requested", ())),
            document.get("id", ""),
            document.get("tenant", ""),
            document.get("parameters", {}),
            tuple(document.get("left_out", ())),
            document.get("decoupled", False),
            [_read_outcome(each) for each in document["outcomes"]],
            document.get("cut", False),
        )
    except FormatError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"it is no record: {error!r}") from None


def _read_outcome(document: Mapping[str, Any]) -> RecordedOutcome:
    outcome = RecordedOutcome(float(document["after_us"]), parameters=document.get("parameters", {}))
    if "error" in document:
        outcome.code, outcome.message = Code[document["error"]["code"]], document["error"]["message"]
    if "outputs" in document:
        outcome.version, outcome.outputs = document["version"], _read_tensors(document["outputs"])
        if unsound := [name for name, tensor in outcome.outputs.items() if not tensor.is_sound]:
            raise FormatError(f"the content of output '{unsound[0]}' is not what its datatype and shape say")
    return outcome


def _read_tensors(documents: list[Mapping[str, Any]]) -> dict[str, RecordedTensor]:
    return {each["name"]: _read_tensor(each) for each in documents}


def _read_tensor(document: Mapping[str, Any]) -> RecordedTensor:
    datatype = dtypes.BY_NAME.get(document["datatype"], dtypes.INVALID)
    shape = tuple(map(int, document["shape"]))
    if "redacted" in document:
        return RecordedTensor(datatype, shape, None)
    if "texts" in document:
        raw = encode_elements(each.encode() for each in document["texts"])
    else:
        raw = a2b_base64(document["base64"], strict_mode=True)
    return RecordedTensor(datatype, shape, Tensor.from_raw(datatype, shape, raw))


def _loads(line: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(line)
    except ValueError as error:
        raise FormatError(f"it is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise FormatError("it is no JSON object")
    return document


ENDING: Final = ".jsonl"
_LARGEST_FILE: Final = 64 * 1024 * 1024
_FILES: Final = 8
"""Minimum number of files within the size limit: deleting the oldest one keeps the others."""
_PART: Final = 64 * 1024
"""Approximate bytes per write."""
_NAME: Final = re.compile(r"[0-9]{8}T[0-9]{6}\.[0-9]{6}Z-w([0-9]+)\.jsonl")


class LongLineError(Exception):
    """A line longer than the limit for all files."""


class RecordFolder:
    """Folder of recordings, for one thread at a time. `size`: limit of this process, number `worker` of `workers`."""

    def __init__(self, place: Path, size: int, run: str, server: str, worker: int = 0, workers: int = 1) -> None:
        self._place = place
        self._most = size
        self._run = run
        self._server = server
        self._worker = worker
        self._workers = workers
        self._largest = min(_LARGEST_FILE, size // _FILES)
        self._files: dict[Path, int] = {}
        """Size of each file in bytes, oldest first."""
        self._current: dict[str, Path] = {}
        self.size = 0
        """Size of all files in bytes."""

    def open(self) -> None:
        """Create the folder for its owner only, and list existing files. Raises OSError if it is not writable."""
        self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(self._place, os.W_OK | os.X_OK):
            raise PermissionError(f"no permission to write to {self._place}")
        for path in sorted(self._place.glob(f"*/*{ENDING}"), key=lambda path: path.name):
            match = _NAME.fullmatch(path.name)
            if match is not None and self._owns(int(match[1])):
                with suppress(OSError):  # removed by another process
                    self._files[path] = path.stat().st_size
        self.size = sum(self._files.values())
        self._make_room(0)

    def _owns(self, worker: int) -> bool:
        """True if a worker's files count for this process. Files of removed workers belong to the first one."""
        return worker == self._worker or (not self._worker and worker >= self._workers)

    def add(self, model: str, at_us: int, parts: Sequence[bytes]) -> None:
        """Append a line to the newest file of a model. Raises OSError or LongLineError without writing anything."""
        path, size = self._current.get(model), sum(map(len, parts))
        if path is not None and (path not in self._files or self._files[path] + size > self._largest):
            path = None
        if path is not None and self._append(path, size, parts, os.O_APPEND):
            return
        head = head_line(FileHead(model, self._run, self._server))
        path = self._new_path(model, at_us)
        self._append(path, size + len(head), [head, *parts], os.O_CREAT | os.O_EXCL)
        self._current[model] = path

    def _append(self, path: Path, size: int, parts: Sequence[bytes], flags: int) -> bool:
        """Append to a file; return False if the file no longer exists."""
        if size > self._most:
            raise LongLineError
        self._make_room(size)
        if flags & os.O_APPEND and path not in self._files:
            return False  # it was the oldest
        try:
            file = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
        except FileNotFoundError:
            if flags & os.O_CREAT:
                raise
            self.size -= self._files.pop(path)
            return False
        try:
            _write(file, parts)
        except OSError:
            if flags & os.O_CREAT:
                path.unlink()
            raise
        finally:
            os.close(file)
        self._files[path] = self._files.get(path, 0) + size
        self.size += size
        return True

    def _new_path(self, model: str, at_us: int) -> Path:
        folder = self._place / folder_name(model)
        folder.mkdir(mode=0o700, exist_ok=True)
        while True:
            second = datetime.fromtimestamp(at_us // 1_000_000, UTC)
            path = folder / f"{second:%Y%m%dT%H%M%S}.{at_us % 1_000_000:06d}Z-w{self._worker}{ENDING}"
            if not path.exists():
                return path
            at_us += 1

    def _make_room(self, size: int) -> None:
        while self._files and self.size + size > self._most:
            oldest = next(iter(self._files))
            self.size -= self._files.pop(oldest)
            oldest.unlink(missing_ok=True)
            with suppress(OSError):  # other files are left
                oldest.parent.rmdir()


def folder_name(model: str) -> str:
    """Return the folder name for a model's files, with special characters of paths replaced."""
    return quote(model, safe=" ").replace(".", "%2E") if model.strip(".") == "" else quote(model, safe=" ")


def _join(parts: Sequence[bytes]) -> Iterator[bytes]:
    """Join the bytes into fewer parts."""
    some: list[bytes] = []
    size = 0
    for part in parts:
        some.append(part)
        size += len(part)
        if size >= _PART:
            yield b"".join(some)
            some, size = [], 0
    yield b"".join(some)


def _write(file: int, parts: Sequence[bytes]) -> None:
    """Write everything or nothing. Raises OSError."""
    start = os.lseek(file, 0, os.SEEK_END)
    try:
        for part in _join(parts):
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(file, rest) :]
    except OSError:
        os.ftruncate(file, start)
        raise
