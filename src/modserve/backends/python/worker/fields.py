"""The inputs and outputs of a function that is a model, from its declaration or its type hints.

A `Field` is one tensor as the server's configuration describes it, and the way between its arrays and the values that
the function takes and returns.
"""

import collections.abc
import sys
import typing
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from . import dtypes

NUMPY_TYPES: "Dict[str, Any]" = {**dtypes.NUMPY_TYPES, "BYTES": np.object_}
"""The type of the arrays that functions get and return."""
_DATATYPES = {np.dtype(kind): name for name, kind in NUMPY_TYPES.items()}
_PLAIN: "Dict[Any, str]" = {bool: "BOOL", int: "INT64", float: "FP64", str: "BYTES", bytes: "BYTES"}
"""Types of single values, with the datatype that each becomes."""
_STREAMS = (
    collections.abc.Iterator,
    collections.abc.Iterable,
    collections.abc.Generator,
    collections.abc.AsyncIterator,
    collections.abc.AsyncIterable,
    collections.abc.AsyncGenerator,
)
_LISTS = (list, collections.abc.Sequence)
_ABSTRACT = (
    np.generic,
    np.number,
    np.integer,
    np.signedinteger,
    np.unsignedinteger,
    np.inexact,
    np.floating,
    np.complexfloating,
    np.flexible,
    np.character,
)
_HELP = (
    "expected str, bytes, int, float, bool, a list of these, numpy.typing.NDArray[...] or "
    "Annotated[..., modserve.Spec(...)]"
)


@dataclass(frozen=True)
class Spec:
    """An input or output: its datatype, its shape without the batch dimension, and more where it is needed.

    `datatype` is a name of the protocol (``"FP32"``, ``"BYTES"``, …), a name of config.pbtxt (``"TYPE_FP32"``), or a
    type of NumPy or Python. Lengths of -1 in `shape` may vary. In ``Annotated[NDArray[np.float32],
    Spec(shape=[3])]`` the datatype may be left out. `name` is the tensor's name, if it is not the parameter's.
    Requests may leave out an `optional` input; the parameter's default then counts.
    """

    datatype: Any = None
    shape: Optional[Sequence[int]] = None
    name: str = ""
    optional: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.shape, list):  # ``Annotated[...] | None`` needs a hash
            object.__setattr__(self, "shape", tuple(self.shape))


Declaration = Union[Spec, Tuple[Any, Sequence[int]]]
"""Description of a tensor in ``inputs=`` and ``outputs=``: ``("FP32", [-1, 3])`` or a `Spec`."""


class Field(NamedTuple):
    """A tensor of a model, with its name in the function."""

    name: str
    key: str
    """The parameter of an input; the key of an output in a dict that the function returns."""
    datatype: str
    shape: Tuple[int, ...]
    """Shape without the batch dimension."""
    optional: bool = False
    element: Any = None
    """The Python or NumPy type of the values, for a field of single values, a list, or an array of str."""
    form: str = "array"
    """``array``, ``single`` (one value) or ``list`` (a value for each row, or any number without batching)."""

    def config(self) -> Dict[str, Any]:
        """Return the entry in the JSON of a model configuration."""
        kind = "TYPE_STRING" if self.datatype == "BYTES" else f"TYPE_{self.datatype}"
        optional = {"optional": True} if self.optional else {}
        return {"name": self.name, "data_type": kind, "dims": list(self.shape), **optional}


def datatype_name(value: Any) -> str:
    """Return the protocol's name of a datatype in any form that `Spec` allows. Raises ValueError."""
    if isinstance(value, str):
        name = value.upper()
        name = name[len("TYPE_") :] if name.startswith("TYPE_") else name
        name = "BYTES" if name == "STRING" else name
        if name in NUMPY_TYPES:
            return name
    elif isinstance(value, type) and value in _PLAIN:
        return _PLAIN[value]
    elif value is not None:
        try:
            dtype = np.dtype(value)
        except TypeError:
            dtype = None
        if dtype is not None and dtype.kind in "US":
            return "BYTES"
        if dtype is not None and dtype in _DATATYPES:
            return _DATATYPES[dtype]
    names = ", ".join(NUMPY_TYPES)
    raise ValueError(f"{value!r} is not a datatype; expected {names}, or a type of NumPy such as float32")


def _shape(shape: Any) -> Tuple[int, ...]:
    """Check a shape of a configuration. Raises ValueError for an invalid one."""
    hint = "expected a list of lengths without the batch dimension, with -1 for any length, such as [-1, 3]"
    if isinstance(shape, (str, bytes)) or not isinstance(shape, collections.abc.Iterable):
        raise ValueError(f"shape is {shape!r}, {hint}")
    lengths = tuple(shape)
    if any(
        isinstance(each, bool) or not isinstance(each, (int, np.integer)) or each < -1 or each == 0 for each in lengths
    ):
        raise ValueError(f"shape is {list(lengths)}, {hint}")
    if not lengths:
        raise ValueError("shape is [], expected at least one length; a single number is [1]")
    return tuple(int(each) for each in lengths)


def read_declaration(key: str, declaration: Any) -> Field:
    """Read a field from ``inputs=`` or ``outputs=``. Raises ValueError."""
    if not isinstance(declaration, Spec):
        if isinstance(declaration, (str, bytes)) or not isinstance(declaration, (tuple, list)) or len(declaration) != 2:
            raise ValueError(
                f"{declaration!r} does not declare a tensor, expected (datatype, shape) such as ('FP32', [-1, 3])"
            )
        declaration = Spec(declaration[0], declaration[1])
    if declaration.shape is None:
        raise ValueError(f"{declaration!r} has no shape, expected one such as [-1, 3]")
    datatype = datatype_name(declaration.datatype)
    return Field(declaration.name or key, key, datatype, _shape(declaration.shape), declaration.optional)


def read_hint(key: str, hint: Any, batching: bool) -> Field:
    """Read a field from a type hint. Raises ValueError."""
    hint, optional = _without_none(hint)
    spec = Spec()
    for each in getattr(hint, "__metadata__", ()):
        if isinstance(each, Spec):
            spec = each
    if hasattr(hint, "__metadata__"):
        hint, nested = _without_none(hint.__origin__)
        optional = optional or nested
    origin, arguments = _origin(hint)
    form, element, shape = "array", None, spec.shape
    if _is_single(hint):
        form, element, shape = "single", hint, (1,) if shape is None else shape
    elif origin in _LISTS and len(arguments) == 1 and _is_single(arguments[0]):
        form, element = "list", arguments[0]
        shape = ((1,) if batching else (-1,)) if shape is None else shape
    elif hint is np.ndarray or origin is np.ndarray:
        element = _element(arguments)
        shape = (-1,) if shape is None else shape
    elif spec.datatype is None or shape is None:
        raise ValueError(f"the type hint {_format_hint(hint)} does not describe a tensor; {_HELP}")
    datatype = element if spec.datatype is None else spec.datatype
    if datatype is None:
        raise ValueError(f"the type hint {_format_hint(hint)} does not say the datatype; {_HELP}")
    lengths = _shape(shape)
    if form != "array" and lengths not in ((1,), (-1,)):
        raise ValueError(f"shape is {list(lengths)} for values of type {_format_hint(hint)}, expected [1]")
    name = datatype_name(datatype)
    if form == "array" and not (isinstance(element, type) and issubclass(element, np.str_)):
        element = None  # arrays of numbers and of bytes are passed as they are
    return Field(spec.name or key, key, name, lengths, optional or spec.optional, element, form)


def output_fields(hint: Any, batching: bool) -> List[Field]:
    """Return the outputs that a return hint describes, in their order. Raises ValueError."""
    origin, arguments = _origin(hint)
    if origin in _STREAMS and arguments:
        return output_fields(arguments[0], batching)
    is_typed_dict = isinstance(hint, type) and issubclass(hint, dict) and hasattr(hint, "__total__")
    if is_typed_dict or (isinstance(hint, type) and hasattr(hint, "_fields")):
        return [read_hint(key, each, batching) for key, each in type_hints(hint).items()]
    if origin is tuple and Ellipsis not in arguments and arguments:
        return [read_hint(f"output_{number}", each, batching) for number, each in enumerate(arguments)]
    return [read_hint("output", hint, batching)]


def is_stream(hint: Any) -> bool:
    """Return True if a return hint is that of a generator."""
    return _origin(hint)[0] in _STREAMS


def type_hints(target: Any) -> Dict[str, Any]:
    """Return the type hints of a function or class, with the contents of ``Annotated``. Raises ValueError."""
    extras: Dict[str, Any] = {"include_extras": True} if sys.version_info >= (3, 9) else {}  # before, it keeps them
    try:
        hints: Dict[str, Any] = typing.get_type_hints(target, **extras)
    except (NameError, TypeError, AttributeError) as error:
        raise ValueError(f"its type hints cannot be read: {error}; import the types outside of functions") from error
    return hints


def _is_single(hint: Any) -> bool:
    return isinstance(hint, type) and (hint in _PLAIN or (issubclass(hint, np.generic) and hint not in _ABSTRACT))


def _origin(hint: Any) -> Tuple[Any, Tuple[Any, ...]]:
    return getattr(hint, "__origin__", None), getattr(hint, "__args__", ())


def _without_none(hint: Any) -> Tuple[Any, bool]:
    """Split ``Optional[X]`` and ``X | None`` into X and True."""
    arguments = getattr(hint, "__args__", ())
    is_union = getattr(hint, "__origin__", None) is Union or type(hint).__name__ == "UnionType"
    if not is_union or type(None) not in arguments:
        return hint, False
    others = [each for each in arguments if each is not type(None)]
    return (others[0] if len(others) == 1 else Union[tuple(others)]), True


def _element(arguments: Tuple[Any, ...]) -> Any:
    """Return the scalar type in ``ndarray[shape, dtype[scalar]]``; None if it is open."""
    for dtype in arguments[1:2]:
        for scalar in getattr(dtype, "__args__", ()):
            if isinstance(scalar, type) and scalar not in _ABSTRACT:
                return scalar
    return None


def _format_hint(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not hasattr(hint, "__args__") else str(hint)


def as_mapping(argument: str, value: Any) -> Mapping[str, Declaration]:
    """Return ``inputs=`` or ``outputs=`` as written. Raises ValueError if it declares no tensors by name."""
    if not isinstance(value, collections.abc.Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{argument} is {value!r}, expected tensors by name such as {{'x': ('FP32', [-1, 3])}}")
    return value
