"""Input data, prepared requests, and sequences.

Input data is generated from the metadata, or read from files such as perf_analyzer's JSON. Requests are prepared as
bytes: HTTP with binary or JSON tensors, or gRPC messages. `Sequences` chooses the next request of each slot, which
sends one whole sequence after another.
"""

import base64
import binascii
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random, randrange
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from modserve.client import grpc_messages
from modserve.client.http_messages import model_path
from modserve.client.input_values import ClientCall
from modserve.core.errors import ModserveError, invalid
from modserve.core.requests.request import ParameterValue
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.sample_data import Sizes, generator, likely, zeros
from modserve.core.tensors.tensor import Array, Shape, Tensor, matches
from modserve.core.wire.byte_strings import decode_elements, encode_elements

from .slots import RequestSlot

Inputs = Mapping[str, Tensor]
"""Inputs of one request, including the batch dimension if there is one."""

_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz0123456789", np.uint8)


@dataclass(frozen=True, slots=True)
class TargetInput:
    """An input as described by the server. `dims` exclude the batch dimension."""

    name: str
    datatype: Datatype
    dims: Shape
    optional: bool = False
    """True if the input is sent only with data from a file or with a `--shape`."""


class Dataset(NamedTuple):
    requests: list[Inputs]
    """Requests, sent in turn."""
    remarks: list[str]
    """Assumptions about the data."""
    streams: list[int]
    """Lengths of the sequences, which are stored one after another in `requests`."""


@dataclass(frozen=True, slots=True)
class DataOptions:
    """Options for input data."""

    batch_size: int = 1
    zero: bool = False
    file: Path | None = None
    """perf_analyzer's JSON."""
    files: tuple[tuple[str, Path], ...] = ()
    shapes: tuple[tuple[str, Shape], ...] = ()
    string_length: int = 128
    string_data: str = ""


def make(model: str, specs: Sequence[TargetInput], batches: bool, data: DataOptions) -> Dataset:
    """Make the requests. Raises INVALID_ARG."""
    if not batches and data.batch_size > 1:
        raise invalid(f"model '{model}' does not support batching, but '--batch-size' is {data.batch_size}")
    known = {spec.name for spec in specs}
    for name, option in [*((n, "--input") for n, _ in data.files), *((n, "--shape") for n, _ in data.shapes)]:
        if name not in known:
            raise invalid(f"option '{option}': model '{model}' has no input '{name}', only {', '.join(sorted(known))}")
    rows = data.batch_size if batches else None
    files = {name: _from_file(spec_of(specs, name), path, rows) for name, path in data.files}
    remarks: list[str] = []
    rest = [spec for spec in specs if spec.name not in files]
    if data.file is not None:
        streams = _documents(data.file)
        documents = itertools.chain.from_iterable(streams)
        samples = [_sample(rest, document, dict(data.shapes), data.file) for document in documents]
        requests: list[Inputs] = [{**files, **_stack(samples, start, rows)} for start in range(len(samples))]
        return Dataset(requests, remarks, [len(stream) for stream in streams])
    shaped = dict(data.shapes)
    made = {
        spec.name: _make_input(model, spec, data, rows, remarks)
        for spec in rest
        if not spec.optional or spec.name in shaped
    }
    everything = {**files, **made}
    return Dataset([{spec.name: everything[spec.name] for spec in specs if spec.name in everything}], remarks, [1])


def spec_of(specs: Sequence[TargetInput], name: str) -> TargetInput:
    return next(spec for spec in specs if spec.name == name)


# Generated data


def _make_input(model: str, spec: TargetInput, data: DataOptions, rows: int | None, remarks: list[str]) -> Tensor:
    shape = dict(data.shapes).get(spec.name)
    if shape is None:
        shape = Sizes("", model).resolve(spec.name, spec.dims)
        if shape != spec.dims:
            sizes = ",".join(map(str, shape))
            remarks.append(f"input '{spec.name}' of shape {list(spec.dims)} is sent as --shape {spec.name}:{sizes}")
    elif not matches(spec.dims, shape):
        raise invalid(f"option '--shape': input '{spec.name}' has shape {list(spec.dims)}, got {list(shape)}")
    whole = shape if rows is None else (rows, *shape)
    return Tensor.from_array(_values(spec, whole, data), spec.datatype)


def _values(spec: TargetInput, shape: Shape, data: DataOptions) -> Array:
    random = generator()
    if data.zero:
        return zeros(spec.datatype, shape)
    if spec.datatype is not dtypes.BYTES:
        return likely(spec.name, spec.datatype, shape, random, max(1, math.prod(shape[1:])))
    array = np.empty(shape, object)
    for index in range(array.size):
        text = data.string_data.encode() or random.choice(_LETTERS, data.string_length).tobytes()
        array.flat[index] = text
    return array


# Files


def _from_file(spec: TargetInput, path: Path, rows: int | None) -> Tensor:
    """Read a numpy array, with or without the batch dimension, or the bytes of any other file for a string input."""
    try:
        if path.suffix != ".npy":
            if spec.datatype is not dtypes.BYTES:
                raise invalid(f"'{path}' is for input '{spec.name}' of {spec.datatype}: expected a .npy file")
            array: Array = np.array([path.read_bytes()], object).reshape(())
            array = np.broadcast_to(array, tuple(1 if size < 0 else size for size in spec.dims))
        else:
            array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise invalid(f"cannot read '{path}': {error.strerror}") from None
    except ValueError as error:
        raise invalid(f"'{path}' cannot be read as an array: {error}") from None
    return _fit(spec, array, rows, f"'{path}'")


def _fit(spec: TargetInput, array: Array, rows: int | None, where: str) -> Tensor:
    if rows is not None and matches(spec.dims, array.shape):
        array = np.repeat(array[None], rows, axis=0)
    dims = spec.dims if rows is None else (-1, *spec.dims)
    if not matches(dims, array.shape):
        raise invalid(f"{where} has shape {list(array.shape)}, and input '{spec.name}' {list(dims)}")
    if spec.datatype is dtypes.BYTES:
        if array.dtype.kind in "SU":
            array = array.astype(object)
        texts = [each if isinstance(each, bytes) else str(each).encode() for each in array.ravel()]
        return Tensor.from_raw(dtypes.BYTES, array.shape, encode_elements(texts))
    try:
        converted: Array = np.ascontiguousarray(array).astype(spec.datatype.numpy, casting="same_kind")
    except TypeError:
        raise invalid(f"{where} is of type {array.dtype}, and input '{spec.name}' of {spec.datatype}") from None
    return Tensor.from_array(converted, spec.datatype)


# perf_analyzer's JSON: {"data": [{"INPUT": [1, 2], "OTHER": {"content": …, "shape": …}, "THIRD": {"b64": …}}, …]},
# or lists of such entries, each with the steps of a sequence.


def _documents(path: Path) -> list[list[Mapping[str, Any]]]:
    """Return the lists of entries. Entries outside of a list form their own list."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise invalid(f"cannot read '{path}': {error.strerror}") from None
    except ValueError as error:
        raise invalid(f"'{path}' is not JSON: {error}") from None
    data = document.get("data") if isinstance(document, dict) else None
    if not isinstance(data, list) or not data:
        raise invalid(f'\'{path}\': expected {{"data": [{{"INPUT": …}}, …]}}')
    streams = [entry for entry in data if isinstance(entry, list)]
    if singles := [entry for entry in data if not isinstance(entry, list)]:
        streams.insert(0, singles)
    if not all(isinstance(step, dict) for stream in streams for step in stream) or not all(streams):
        raise invalid(f"'{path}': each entry of 'data' has to be an object of inputs by name, or a list of such steps")
    return streams


def _sample(
    specs: Sequence[TargetInput], document: Mapping[str, Any], shapes: Mapping[str, Shape], path: Path
) -> dict[str, Tensor]:
    """Return one row of each input."""
    sample = {}
    for spec in specs:
        if spec.name not in document:
            if spec.optional:
                continue
            raise invalid(f"'{path}' has an entry without input '{spec.name}'")
        sample[spec.name] = _value(spec, document[spec.name], shapes.get(spec.name), path)
    return sample


def _value(spec: TargetInput, value: Any, shape: Shape | None, path: Path) -> Tensor:
    where = f"'{path}': the content of input '{spec.name}'"
    content = value
    if isinstance(value, dict):
        shape = tuple(value.get("shape", ())) or shape
        content = value.get("content", value)
    fixed = shape or (None if any(size < 0 for size in spec.dims) else spec.dims)
    if isinstance(content, dict):
        if "b64" not in content:
            raise invalid(f"{where} has neither 'content' nor 'b64'")
        try:
            raw = base64.b64decode(content["b64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise invalid(f"{where} is not base64") from None
        if spec.datatype is dtypes.BYTES:
            return Tensor.from_raw(dtypes.BYTES, fixed or (1,), encode_elements([raw]))
        if fixed is None:
            raise invalid(f"{where} needs a 'shape', or '--shape', since the input has {list(spec.dims)}")
        if len(raw) != math.prod(fixed) * spec.datatype.size:
            raise invalid(f"{where} has {len(raw)} bytes, expected {math.prod(fixed) * spec.datatype.size}")
        return Tensor.from_raw(spec.datatype, fixed, raw)
    try:
        flat = _flat(content if isinstance(content, list) else [content])
        if spec.datatype is dtypes.BYTES:
            texts = [_text(each) for each in flat]
            return Tensor.from_raw(dtypes.BYTES, _shape(fixed, spec, len(texts)), encode_elements(texts))
        array = np.array(flat).astype(spec.datatype.numpy)
        return Tensor.from_array(array.reshape(_shape(fixed, spec, array.size)), spec.datatype)
    except ModserveError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        raise invalid(f"{where} does not fit {spec.datatype} {list(fixed or spec.dims)}: {error}") from None


def _shape(fixed: Shape | None, spec: TargetInput, count: int) -> Shape:
    """Return the shape. An unknown dimension is computed from the number of elements."""
    if fixed is not None:
        if math.prod(fixed) != count:
            raise ValueError(f"{count} elements")
        return fixed
    if sum(size < 0 for size in spec.dims) > 1:
        raise ValueError("its shape is needed as 'shape', or as '--shape'")
    known = math.prod(size for size in spec.dims if size >= 0)
    if not known or count % known:
        raise ValueError(f"{count} elements")
    return tuple(count // known if size < 0 else size for size in spec.dims)


def _flat(content: Any) -> list[Any]:
    return [each for part in content for each in (_flat(part) if isinstance(part, list) else [part])]


def _text(value: Any) -> bytes:
    if isinstance(value, dict) and "b64" in value:
        return base64.b64decode(value["b64"])
    return str(value).encode()


def _stack(samples: Sequence[Mapping[str, Tensor]], start: int, rows: int | None) -> Inputs:
    """Return the request that begins with the sample at `start`; each row is a sample, wrapping around."""
    if rows is None:
        return samples[start]
    chosen = [samples[(start + offset) % len(samples)] for offset in range(rows)]
    stacked = {}
    if any(sample.keys() != samples[start].keys() for sample in chosen):
        raise invalid("a batch needs samples with the same inputs, and optional ones are in some only")
    for name, first in samples[start].items():
        tensors = [sample[name] for sample in chosen]
        if any(tensor.shape != first.shape for tensor in tensors):
            raise invalid(f"a batch needs samples of one shape, and input '{name}' has several; try '--batch-size 1'")
        raw = b"".join(bytes(tensor.raw) for tensor in tensors)
        stacked[name] = Tensor.from_raw(first.datatype, (rows, *first.shape), raw)
    return stacked


GRPC_PATH = "/inference.GRPCInferenceService/ModelInfer"
GRPC_STREAM_PATH = "/inference.GRPCInferenceService/ModelStreamInfer"
_NOTHING: Mapping[str, ParameterValue] = MappingProxyType({})
_TAG_WIDTH = 80
"""Fixed size of a JSON tag in bytes, padded with spaces, so that the lengths in a request's head are constant."""


class PreparedRequest(NamedTuple):
    """A request in two parts, with the optional tag in between."""

    before: bytes
    after: bytes = b""


def http_request(
    authority: str, url: str, inputs: Inputs, headers: Sequence[tuple[str, str]], *, binary: bool, tagged: bool = False
) -> PreparedRequest:
    """Return a request with head and body. A `tagged` request has a gap for `http_tag`.

    Raises INVALID_ARG for strings that JSON cannot represent.
    """
    raws = [bytes(tensor.raw) for tensor in inputs.values()] if binary else []
    rows = json.dumps([_row(name, tensor, binary) for name, tensor in inputs.items()], separators=(",", ":"))
    parameters = '"binary_data_output":true' if binary else ""
    opening = b'{"parameters":{'
    rest = f'{"," if tagged and parameters else ""}{parameters}}},"inputs":{rows}}}'.encode()
    length = len(opening) + (_TAG_WIDTH if tagged else 0) + len(rest)
    lines = [f"POST {url} HTTP/1.1", f"Host: {authority}", f"Content-Length: {length + sum(map(len, raws))}"]
    if binary:
        lines += ["Content-Type: application/octet-stream", f"Inference-Header-Content-Length: {length}"]
    else:
        lines += ["Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers]
    before = "\r\n".join([*lines, "", ""]).encode("latin-1") + opening
    after = b"".join([rest, *raws])
    return PreparedRequest(before, after) if tagged else PreparedRequest(before + after)


SequenceId = int | str
SequenceTag = Callable[[SequenceId, bool, bool], bytes]
"""Encodes the sequence id of a request, and whether the request is the first and the last one."""


def http_tag(sequence: SequenceId, start: bool, end: bool) -> bytes:
    flags = {"sequence_id": sequence, "sequence_start": start, "sequence_end": end}
    return json.dumps(flags, separators=(",", ":"))[1:-1].encode().ljust(_TAG_WIDTH)


def grpc_tag(sequence: SequenceId, start: bool, end: bool) -> bytes:
    """Return ModelInferRequest fields to append to a prepared request."""
    return grpc_message("", None, {}, {"sequence_id": sequence, "sequence_start": start, "sequence_end": end})


def _row(name: str, tensor: Tensor, binary: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "datatype": tensor.datatype.name, "shape": list(tensor.shape)}
    if binary:
        row["parameters"] = {"binary_data_size": len(tensor.raw)}
    elif tensor.datatype is dtypes.BYTES:
        try:
            row["data"] = [element.decode() for element in decode_elements(tensor.raw)]
        except UnicodeDecodeError:
            raise invalid(f"input '{name}' has strings that are not UTF-8, which JSON cannot represent") from None
    elif tensor.datatype.json_kind == "float":
        row["data"] = [float(value) for value in tensor.array.ravel()]
    else:
        row["data"] = tensor.array.ravel().tolist()
    return row


def http_path(prefix: str, model: str, version: int | None, call: str = "infer") -> str:
    return f"{prefix}{model_path(model, version)}/{call}"


def grpc_message(
    model: str, version: int | None, inputs: Inputs, parameters: Mapping[str, ParameterValue] = _NOTHING
) -> bytes:
    return grpc_messages.infer(ClientCall(model, version, inputs, parameters=parameters)).SerializeToString()


DEFAULT_LENGTH = 20
DEFAULT_VARIATION = 20.0
_FIRST_IDS = 1 << 30
"""Limit of the first id. It is random, as others may measure the same server; ids increase within signed 32 bits."""


@dataclass(frozen=True, slots=True)
class SequenceLengths:
    """Distribution of sequence lengths, with perf_analyzer's options."""

    length: int | None = None
    """Length of a sequence; None: the steps of the data, or 20 for generated data."""
    variation: float = DEFAULT_VARIATION
    """Maximum random deviation from the length, in percent."""

    def draw(self, steps: int | None, generator: Random) -> int:
        """Draw the length of a sequence. `steps` is the length of its data, None for generated data."""
        if self.length is None and steps is not None:
            return steps
        length = self.length or DEFAULT_LENGTH
        return max(1, round(length * (1 + generator.uniform(-1, 1) * self.variation / 100)))


@dataclass(slots=True)
class _ActiveSequence:
    """An open sequence."""

    id: int | str
    first: int
    """Index of the first request of its data."""
    steps: int
    """Number of steps in the data; a longer sequence repeats them."""
    length: int
    sent: int = 0


@dataclass(slots=True)
class Sequences:
    """Sequences of all slots. New sequences use the data streams in turn, and get unique ids."""

    tag: SequenceTag
    streams: Sequence[int]
    """Number of requests of each data stream, stored one after another."""
    lengths: SequenceLengths
    made_up: bool = True
    """True for generated data, which does not determine the length."""
    text_ids: bool = False
    """True for a model with string ids."""
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(randrange(1, _FIRST_IDS)))
    _random: Random = field(init=False, default_factory=lambda: Random(0))
    _turn: int = field(init=False, default=0)
    _active: dict[RequestSlot, _ActiveSequence] = field(init=False, default_factory=dict)

    def next(self, slot: RequestSlot) -> tuple[int, bytes]:
        """Return the slot's next request and tag: the next of its sequence, or the first of a new one."""
        sequence = self._active.get(slot)
        if sequence is None:
            sequence = self._active[slot] = self._begin()
        return self._step(slot, sequence, sequence.sent + 1 >= sequence.length)

    def last(self, slot: RequestSlot) -> tuple[int, bytes]:
        """Return a request that ends the slot's sequence early. Requires a sequence in progress."""
        return self._step(slot, self._active[slot], True)

    def under_way(self, slot: RequestSlot) -> bool:
        """Return True while the slot's sequence is not complete."""
        return slot in self._active

    def drop(self, slot: RequestSlot) -> None:
        """Drop the sequence of a failed request."""
        self._active.pop(slot, None)

    def only(self) -> tuple[int, bytes]:
        """Return a sequence of one request."""
        return 0, self.tag(self._id(), True, True)

    def _begin(self) -> _ActiveSequence:
        turn = self._turn % len(self.streams)
        self._turn += 1
        steps = self.streams[turn]
        length = self.lengths.draw(None if self.made_up else steps, self._random)
        return _ActiveSequence(self._id(), sum(self.streams[:turn]), steps, length)

    def _step(self, slot: RequestSlot, sequence: _ActiveSequence, is_last: bool) -> tuple[int, bytes]:
        tag = self.tag(sequence.id, sequence.sent == 0, is_last)
        index = sequence.first + sequence.sent % sequence.steps
        sequence.sent += 1
        if is_last:
            del self._active[slot]
        return index, tag

    def _id(self) -> int | str:
        number = next(self.ids)
        return f"bench-{number}" if self.text_ids else number
