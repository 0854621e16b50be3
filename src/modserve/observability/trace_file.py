"""Trace files: JSON arrays that are complete after every trace, written on a thread of their own.

Traces in the format of Triton's files: a JSON object for each record.
"""

import json
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor
from modserve.core.version import ModelId

_ELEMENTS = 16 * 1024
"""Elements that are formatted at once: each needs far more memory than its text."""


class TraceRecord(NamedTuple):
    """An activity and its time, in nanoseconds of the monotonic clock; with `name`, a tensor at that time."""

    ns: int
    activity: str
    name: str = ""
    tensor: Tensor | None = None


def render(
    trace_id: int, model: ModelId, request_id: str, records: Sequence[TraceRecord], parent_id: int = 0, tenant: str = ""
) -> bytes:
    """The records of one trace by time, with commas between them. The first one names the trace and its model."""
    head: dict[str, object] = {"id": trace_id, "model_name": model.name, "model_version": model.version}
    if request_id:
        head["request_id"] = request_id
    if parent_id:
        head["parent_id"] = parent_id
    if tenant:
        head["tenant"] = tenant
    lines = [_json(head)]
    for record in sorted(records, key=lambda record: record.ns):
        if (tensor := record.tensor) is None:
            lines.append(f'{{"id":{trace_id},"timestamps":[{{"name":"{record.activity}","ns":{record.ns}}}]}}')
        else:
            described = {
                "name": record.name,
                "data": data(tensor),
                "shape": ",".join(map(str, tensor.shape)),
                "dtype": tensor.datatype.name,
            }
            lines.append(_json({"id": trace_id, "activity": record.activity, "tensor": described}))
    return ",".join(lines).encode()


def data(tensor: Tensor) -> str:
    """Return a tensor's elements with commas between them.

    Numbers are decimal and exact; BOOL is 0 or 1; BYTES are quoted like CSV, with backslash escapes for bytes that are
    not UTF-8.
    """
    flat = tensor.array.reshape(-1)
    if tensor.datatype is dtypes.BYTES:
        texts = (element.decode("utf-8", "backslashreplace").replace('"', '""') for element in flat.tolist())
        return ",".join(f'"{text}"' for text in texts)
    if tensor.datatype is dtypes.BOOL:
        flat = flat.view("u1")
    elif tensor.datatype is dtypes.BF16:
        flat = flat.astype("f4")
    pieces = (flat[start : start + _ELEMENTS] for start in range(0, len(flat), _ELEMENTS))
    # Without Python's floats, which would show more digits than an FP32 has.
    return ",".join(",".join(piece.astype("U").tolist()) for piece in pieces)


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


_log = logging.getLogger(__name__)

MOST_PENDING = 64 * 1024 * 1024
"""Bytes of traces that may wait to be written. If the disk is slower, traces are left out."""

_CHUNK = 1024 * 1024


class JsonArray:
    """A file with one JSON array. It is complete whenever no write is under way, even after a failed write."""

    def __init__(self, path: str) -> None:
        """Opens nothing: the first `append` does."""
        self.path = path
        self._file: int | None = None
        self.end = 0
        """The position of the closing bracket; 0 if nothing has been added, and there may be no file."""

    def append(self, chunks: Iterable[bytes]) -> None:
        """Adds the elements in `chunks`, with commas between them. Raises OSError; then nothing is added."""
        if self._file is None:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
            self.end = 0
        position = self.end
        try:
            position += _write(self._file, b",\n" if self.end else b"[", position)
            for chunk in chunks:
                position += _write(self._file, chunk, position)
            _write(self._file, b"]", position)
        except BaseException:
            os.ftruncate(self._file, self.end)
            if self.end:
                _write(self._file, b"]", self.end)
            raise
        self.end = position

    def elements(self) -> Iterator[bytes]:
        """Yield all elements, in chunks."""
        if self._file is not None:
            for start in range(1, self.end, _CHUNK):
                yield os.pread(self._file, min(_CHUNK, self.end - start), start)

    def move(self, path: str) -> None:
        """Renames the file, and replaces a file of that name. Raises OSError."""
        os.replace(self.path, path)
        self.path = path

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _write(file: int, data: bytes, position: int) -> int:
    written = 0
    while written < len(data):
        written += os.pwrite(file, data[written:], position + written)
    return written


class TraceFiles:
    """The files of one server: the main file `path`, and indexed files ``path.0``, ``path.1``, ...

    A file that will have an index when it is complete has the main file's name until then, if that name is free.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._main: JsonArray | None = None
        self._unfinished: JsonArray | None = None
        """The file with the main one's name that has no index yet."""
        self._next = 0

    def main(self) -> JsonArray:
        """Raises OSError."""
        if self._main is None:
            self._free_name()
            self._main = JsonArray(self._path)
        return self._main

    def open_indexed(self) -> JsonArray:
        return JsonArray(self._next_path())

    def open_unfinished(self) -> JsonArray:
        """Return a new file for `complete` or `merge`."""
        if self._main is not None or self._unfinished is not None:
            return self.open_indexed()
        self._unfinished = JsonArray(self._path)
        return self._unfinished

    def complete(self, array: JsonArray) -> None:
        """Closes a file, which has an index then. Raises OSError."""
        if array is self._unfinished:
            self._free_name()
        array.close()

    def _next_path(self) -> str:
        self._next += 1
        return f"{self._path}.{self._next - 1}"

    def _free_name(self) -> None:
        array, self._unfinished = self._unfinished, None
        if array is not None and array.end:
            array.move(self._next_path())

    def merge(self, array: JsonArray) -> None:
        """Moves the content of a file without traces to come into the main one, and frees its index if it is the last.

        Raises OSError. Nothing is lost then: the file stays.
        """
        if array is self._unfinished:
            self._main, self._unfinished = array, None
            return
        self._free_name()
        last = array.path == f"{self._path}.{self._next - 1}"
        if self._main is None:
            array.move(self._path)
            self._main = array
        else:
            self._main.append(array.elements())
            array.close()
            os.unlink(array.path)
        if last:
            self._next -= 1

    def close(self) -> None:
        for array in (self._main, self._unfinished):
            if array is not None:
                array.close()


class TraceOutput:
    """The destination of the traces of one setting. For the writer's thread.

    With `indexed`, the traces have files of their own; `finish` completes each. When the setting ends, a file that is
    not finished stays as it is with `keep`, and otherwise moves into the main file.
    """

    def __init__(self, files: TraceFiles, *, indexed: bool, keep: bool) -> None:
        self._files = files
        self._indexed = indexed
        self._keep = keep
        self._array: JsonArray | None = None

    def append(self, records: bytes) -> None:
        """Raises OSError."""
        if not self._indexed:
            self._files.main().append((records,))
            return
        if self._array is None:
            self._array = self._files.open_indexed() if self._keep else self._files.open_unfinished()
        self._array.append((records,))

    def finish(self) -> None:
        """Raises OSError."""
        array, self._array = self._array, None
        if array is not None:
            self._files.complete(array)

    def end(self) -> None:
        """Raises OSError."""
        if self._array is None:
            return
        array, self._array = self._array, None
        if self._keep or not array.end:
            self._files.complete(array)
        else:
            self._files.merge(array)


class Writer:
    """Runs work in order on one thread, which starts with the first piece of work.

    Work of at most `most` may wait, in whatever it is measured by; the log says `too_much` when there is more.
    """

    def __init__(
        self, most: int = MOST_PENDING, too_much: str = f"traces are left out because {MOST_PENDING} bytes of them wait"
    ) -> None:
        self._most = most
        self._too_much = too_much
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trace")
        self._lock = threading.Lock()
        self._pending = 0
        self._failing = False
        self._full = False
        self.dropped = 0
        """Pieces of work that were left out, or failed."""

    def put(self, work: Callable[[], None], size: int = 0) -> bool:
        """Runs `work`, of this size, later. False, and it never runs, if too much is pending."""
        with self._lock:
            full = self._pending > 0 and self._pending + size > self._most
            if full:
                self.dropped += 1
            else:
                self._pending += size
        if full and not self._full and self._too_much:
            _log.error("%s to be written", self._too_much)
        self._full = full
        if not full:
            self._thread.submit(self._do, work, size)
        return not full

    def close(self) -> None:
        """Finishes all pending work and ends. Blocks."""
        self._thread.shutdown()

    def _do(self, work: Callable[[], None], size: int) -> None:
        try:
            work()
            self._failing = False
        except Exception as error:
            with self._lock:
                self.dropped += 1
            if not self._failing:  # a full disk is logged once, not with every trace
                self._failing = True
                foreign = None if isinstance(error, OSError) else error
                _log.error("a trace cannot be written, and is left out: %s", error, exc_info=foreign)
        finally:
            with self._lock:
                self._pending -= size
