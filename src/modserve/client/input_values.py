"""Input values, their conversion by the model's metadata, and results.

Includes flat requests and responses, as in the generate extension: plain values by name.
"""

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from modserve.core.errors import Code, ModserveError
from modserve.core.requests.request import ParameterValue
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Array, Shape, Tensor

from .errors import ClientError, bad_response

Value: TypeAlias = object
"""An input value. A `Tensor` or an array is sent unchanged. Arrays of numpy's default types (float64 and int64),
numbers, texts, lists and data frames are converted to the model's datatype.

Declared as any object, because type checkers infer objects as the values of a dictionary of arrays and lists.
"""

FINAL = "triton_final_response"


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """An input or output of a model. `shape` includes the batch dimension, with -1 for any size."""

    name: str
    datatype: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """Inputs and outputs of a model. `versions` are the READY versions."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ClientCall:
    """An inference call. `timeout` limits the whole call, in seconds.

    With `classes` above 0, each of `outputs` is returned as that many top classes instead of its values.
    """

    model: str
    version: int | None
    tensors: Mapping[str, Tensor]
    outputs: tuple[str, ...] = ()
    request_id: str = ""
    parameters: Mapping[str, ParameterValue] | None = None
    timeout: float | None = None
    classes: int = 0


class Result(Mapping[str, Array]):
    """Outputs of one response, as arrays by name. BYTES are object arrays of ``bytes``.

    `version` is None if the server does not report it.
    """

    __slots__ = ("_tensors", "id", "model", "parameters", "version")

    def __init__(
        self,
        model: str,
        version: int | None,
        tensors: Mapping[str, Tensor],
        id: str = "",
        parameters: Mapping[str, ParameterValue] | None = None,
    ) -> None:
        self.model = model
        self.version = version
        self.id = id
        self.parameters = dict(parameters or {})
        self._tensors = tensors

    def __getitem__(self, name: str) -> Array:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise KeyError(f"{name}: the outputs of model '{self.model}' here are {', '.join(self._tensors) or 'none'}")
        return tensor.array

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        outputs = ", ".join(f"{name}: {tensor!r}" for name, tensor in self._tensors.items())
        return f"Result({self.model}, version {self.version}, {{{outputs}}})"

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Outputs with their datatypes."""
        return self._tensors

    def datatype(self, name: str) -> str:
        """Return the output's datatype in the protocol's spelling, such as ``FP32``."""
        self[name]
        return self._tensors[name].datatype.name

    def plain(self, name: str) -> Any:
        """Return the output as Python numbers or texts, in nested lists, or as a single value if it has one element.

        BYTES are decoded as UTF-8, with replacement characters for invalid bytes.
        """
        values = self[name].tolist() if self[name].size != 1 else self[name].reshape(-1).tolist()[0]
        return _decode(values) if self._tensors[name].datatype is dtypes.BYTES else values

    @property
    def is_bare_end(self) -> bool:
        """True if the result only marks the end of the responses."""
        return not self._tensors and self.parameters.get(FINAL) is True


def _decode(values: Any) -> Any:
    if isinstance(values, list):
        return [_decode(value) for value in values]
    return values.decode(errors="replace") if isinstance(values, bytes) else values


def needs_metadata(inputs: Mapping[str, Value]) -> bool:
    """Return True if `inputs` cannot be sent without the model's datatypes."""
    return not all(map(_is_typed, inputs.values()))


def _is_typed(value: Value) -> bool:
    """Return True if the value has a deliberate datatype, which numpy's default types do not show."""
    if isinstance(value, np.ndarray):
        return value.dtype not in (np.float64, np.int64)
    return isinstance(value, Tensor)


def to_tensors(inputs: Mapping[str, Value], metadata: ModelMetadata | None) -> dict[str, Tensor]:
    """Return the inputs of a request. Raises INVALID_ARG for values that cannot be converted."""
    return {name: _tensor(name, value, metadata) for name, value in inputs.items()}


def _tensor(name: str, value: Value, metadata: ModelMetadata | None) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray) and _is_typed(value):
        return Tensor.from_array(value)
    assert metadata is not None, "asked for where `needs_metadata`: this is a bug"
    spec = next((each for each in metadata.inputs if each.name == name), None)
    if spec is None:
        names = ", ".join(each.name for each in metadata.inputs)
        raise _invalid(f"model '{metadata.name}' has no input '{name}'; it has: {names}")
    datatype = dtypes.BY_NAME.get(spec.datatype)
    if datatype is None:
        raise _invalid(f"input '{name}' of model '{metadata.name}' has the unknown datatype {spec.datatype}")
    array = _array(name, value, datatype)
    if isinstance(value, np.ndarray):
        return Tensor.from_array(array, datatype)
    return Tensor.from_array(array.reshape(full_shape(spec.shape, array.shape)), datatype)


_KINDS = {"bool": "b", "int": "iu", "float": "iuf", "string": "OSU"}
"""Kind of JSON value of a datatype → accepted kinds of numpy arrays."""


def _array(name: str, value: Value, datatype: Datatype) -> Array:
    """Convert a value without loss. Raises INVALID_ARG if that is impossible."""
    if datatype is dtypes.BYTES:
        return _texts(name, value)
    try:
        plain = np.asarray(value)
        if plain.size and plain.dtype.kind not in _KINDS[datatype.json_kind]:
            raise ValueError(f"got {plain.reshape(-1)[:1].tolist()[0]!r}")
        if not isinstance(value, np.ndarray):
            return np.array(value, dtype=datatype.numpy)
        with np.errstate(over="ignore"):
            made = value.astype(datatype.numpy, copy=False)
        if datatype.json_kind == "int" and (wrong := value[made != value]).size:
            raise ValueError(f"got {wrong[0]}")
        return made
    except (ValueError, TypeError, OverflowError) as error:
        raise _invalid(f"input '{name}' takes {datatype.name}; {error}") from None


def _texts(name: str, value: Value) -> Array:
    try:
        return Tensor.from_array(np.array(value, dtype=object), dtypes.BYTES).array
    except (ModserveError, ValueError) as error:
        raise _invalid(f"input '{name}' takes BYTES; {error}") from None


def full_shape(dims: Shape, shape: Shape) -> Shape:
    """Return the shape with leading dimensions of 1 added where the model allows it, such as for the batch."""
    missing = len(dims) - len(shape)
    return (1,) * missing + shape if missing > 0 and all(dim in (-1, 1) for dim in dims[:missing]) else shape


def _invalid(message: str) -> ClientError:
    return ClientError(Code.INVALID_ARG, message)


def metadata_of(document: Mapping[str, Any]) -> ModelMetadata:
    """Return the metadata in a server's response. Raises ClientError if it is invalid."""

    def tensors(key: str) -> tuple[TensorMetadata, ...]:
        rows = document.get(key) or []
        return tuple(TensorMetadata(row["name"], row["datatype"], tuple(map(int, row["shape"]))) for row in rows)

    try:
        versions = tuple(map(str, document.get("versions") or ()))
        platform = document.get("platform", "")
        return ModelMetadata(document["name"], versions, platform, tensors("inputs"), tensors("outputs"))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise bad_response(f"it is not the metadata of a model: {error!r}") from error


def version_of(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def split(fields: Mapping[str, Value], metadata: ModelMetadata) -> tuple[dict[str, Value], dict[str, ParameterValue]]:
    """Split fields into inputs of the model and parameters. Raises INVALID_ARG for invalid parameters."""
    names = {spec.name for spec in metadata.inputs}
    inputs: dict[str, Value] = {}
    parameters: dict[str, ParameterValue] = {}
    for name, value in fields.items():
        if name in names:
            inputs[name] = value
        elif isinstance(value, bool | int | float | str):
            parameters[name] = value
        else:
            listed = ", ".join(sorted(names))
            raise ClientError(
                Code.INVALID_ARG,
                f"'{name}' is not an input of model '{metadata.name}', which has {listed}; a parameter must be a "
                f"bool, a number or a text, got {type(value).__name__}",
            )
    return inputs, parameters


def to_dict(result: Result) -> dict[str, Any]:
    """Return the outputs and parameters of a response. Outputs take precedence."""
    return {**result.parameters, **{name: result.plain(name) for name in result}}


def each(results: Generator[Result]) -> Generator[dict[str, Any]]:
    with closing(results):
        for result in results:
            yield to_dict(result)
