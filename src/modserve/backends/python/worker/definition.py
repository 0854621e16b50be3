"""The definition of a decorated function or class, from its declaration, its signature and its type hints."""

import collections.abc
import inspect
import os
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from .fields import Declaration, Field, as_mapping, is_stream, output_fields, read_declaration, read_hint, type_hints

ISOLATIONS = ("process", "thread", "inline")
_RESERVED = {
    "backend": "it is always python",
    "dynamic_batching": "use dynamic_batching=…",
    "input": "use inputs=…",
    "instance_group": "use instances=…",
    "max_batch_size": "use max_batch_size=…",
    "model_transaction_policy": "only generators are decoupled",
    "name": "it is set where the model is served",
    "output": "use outputs=…",
}
"""Parts of a configuration that the decorator writes, with the alternative for each."""

Instances = Union[int, Mapping[str, Any], Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Context:
    """Placement of an instance of a decorated class; passed to ``__init__`` if that has one parameter."""

    model_name: str
    version: int
    directory: str
    """The directory of the source file, for example to find weights."""
    instance_name: str = ""
    kind: str = "CPU"
    """CPU, GPU or MODEL."""
    device: int = 0
    """The number of the GPU."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The completed configuration of the model, with the names of config.pbtxt."""


class Options(NamedTuple):
    """The keywords of the decorator, as they were written."""

    inputs: Optional[Mapping[str, Declaration]]
    outputs: Optional[Mapping[str, Declaration]]
    max_batch_size: int
    dynamic_batching: Union[bool, Mapping[str, Any], None]
    instances: Instances
    isolation: str
    config: Mapping[str, Any]


class Definition(NamedTuple):
    """A decorated function or class, read and checked."""

    target: Any
    """Decorated function or class."""
    options: Options
    inputs: Tuple[Field, ...]
    outputs: Tuple[Field, ...]
    streams: bool
    """True if it is a generator: the model is decoupled."""
    is_async: bool
    method: str
    """Method of a class's instance that requests call: ``predict`` or ``__call__``; empty for a function."""
    takes_context: bool

    @property
    def batching(self) -> bool:
        return self.options.max_batch_size > 0

    @property
    def by_row(self) -> bool:
        """True if each row has a call of its own: the function takes or returns single values."""
        return self.batching and any(each.form == "single" for each in (*self.inputs, *self.outputs))

    @property
    def isolation(self) -> str:
        return self.options.isolation

    @property
    def directory(self) -> str:
        """Directory of the source; the working directory for an object that has none."""
        return os.path.dirname(os.path.abspath(place(self.target)[0]))

    def config(self) -> Dict[str, Any]:
        """Return the model's configuration, as the JSON of ``config.pbtxt``, without its name."""
        options = self.options
        config: Dict[str, Any] = {
            **options.config,
            "backend": "python",
            "max_batch_size": options.max_batch_size,
            "input": [each.config() for each in self.inputs],
            "output": [each.config() for each in self.outputs],
            "instance_group": _instance_groups(options.instances),
        }
        if self.streams:
            config["model_transaction_policy"] = {"decoupled": True}
        batching = self.dynamic_batching
        if batching is not None:
            config["dynamic_batching"] = dict(batching)
        if self.isolation != "process":
            mode = {"EXECUTION_MODE": {"string_value": self.isolation}}
            config["parameters"] = {**config.get("parameters", {}), **mode}
        return config

    @property
    def dynamic_batching(self) -> Optional[Mapping[str, Any]]:
        """Configuration of merging; None if requests are not merged. By default a model that can merges them."""
        choice = self.options.dynamic_batching
        if isinstance(choice, collections.abc.Mapping):
            return choice
        others = {"sequence_batching", "ensemble_scheduling"} & self.options.config.keys()
        by_default = self.options.max_batch_size > 1 and not self.streams and not others
        return {} if (by_default if choice is None else choice) else None


def define(target: Any, options: Options) -> Definition:
    """Define a model. Raises ValueError if the object cannot be one; the text has the remedy."""
    _check(options)
    called, method = _find_callable(target)
    batching = options.max_batch_size > 0
    explicit = options.inputs is not None and options.outputs is not None
    hints = {} if explicit else type_hints(called)
    returned = hints.pop("return", None)
    is_method = method and not isinstance(inspect.getattr_static(target, method), (staticmethod, classmethod))
    parameters = _parameters(called, bool(is_method))
    inputs = tuple(_inputs(parameters, hints, options.inputs, batching))
    outputs = tuple(_outputs(returned, options.outputs, batching))
    for what, fields in (("input", inputs), ("output", outputs)):
        names = [each.name for each in fields]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two of its {what}s have the name '{twice[0]}'")
    inner = inspect.unwrap(getattr(called, "func", called))
    streams = inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner) or is_stream(returned)
    is_async = inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner)
    if streams and options.isolation == "inline":
        raise ValueError(
            "isolation is 'inline', where a generator cannot wait for slow readers; expected 'process' or 'thread'"
        )
    definition = Definition(target, options, inputs, outputs, streams, is_async, method, _takes_context(target))
    forms = {each.form for each in (*inputs, *outputs)}
    if definition.by_row and "list" in forms:
        raise ValueError(
            "it mixes single values (called once per row) with lists (one value "
            "per row); expected only one kind, or max_batch_size=0"
        )
    if definition.by_row and streams:
        raise ValueError("a generator with single values is called once for each request; expected max_batch_size=0")
    return definition


def _check(options: Options) -> None:
    size: Any = options.max_batch_size
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise ValueError(f"max_batch_size is {size!r}, expected a number of 0 (no batch dimension) or more")
    if options.isolation not in ISOLATIONS:
        raise ValueError(f"isolation is {options.isolation!r}, expected 'process', 'thread' or 'inline'")
    batching: Any = options.dynamic_batching
    if not (batching is None or isinstance(batching, (bool, collections.abc.Mapping))):
        raise ValueError(
            f"dynamic_batching is {batching!r}, expected True, False or a dict as in a configuration, such as "
            "{'max_queue_delay_microseconds': 100}"
        )
    if batching and not size:
        raise ValueError("dynamic_batching needs a max_batch_size above 0")
    count = options.instances
    groups = _instance_groups(count)
    is_none = isinstance(count, int) and count < 1
    if not groups or not all(isinstance(each, collections.abc.Mapping) for each in groups) or is_none:
        raise ValueError(f"instances is {count!r}, expected a number of 1 or more, or an instance_group as JSON")
    for name in options.config:
        if name in _RESERVED:
            raise ValueError(f"config has the field '{name}': {_RESERVED[name]}")


def _instance_groups(instances: Any) -> List[Any]:
    if isinstance(instances, int) and not isinstance(instances, bool):
        return [{"count": instances, "kind": "KIND_CPU"}]
    if isinstance(instances, collections.abc.Mapping):
        return [dict(instances)]
    return list(instances) if isinstance(instances, collections.abc.Iterable) else [instances]


def _find_callable(target: Any) -> Tuple[Any, str]:
    """Return the callable for requests, and its name in a class."""
    if not isinstance(target, type):
        if not callable(target):
            raise ValueError("it is neither a function nor a class")
        method = getattr(target, "__call__", None)  # noqa: B004
        return (method if hasattr(method, "__code__") else target), ""
    for name in ("predict", "__call__"):
        if any(name in vars(base) for base in target.__mro__[:-1]):
            return getattr(target, name), name
    raise ValueError("the class has no method predict or __call__ for requests to call")


def _parameters(called: Any, is_method: bool) -> Dict[str, inspect.Parameter]:
    """Return the parameters for inputs; one called ``**`` if it takes any keyword."""
    try:
        parameters = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError) as error:
        raise ValueError(f"its parameters cannot be read: {error}") from error
    named = {}
    for each in parameters[1:] if is_method else parameters:
        if each.kind in (each.VAR_POSITIONAL, each.POSITIONAL_ONLY):
            star = "*" if each.kind == each.VAR_POSITIONAL else ""
            raise ValueError(f"the parameter '{star}{each.name}' cannot be passed by keyword, as inputs are")
        named["**" if each.kind == each.VAR_KEYWORD else each.name] = each
    return named


def _inputs(
    parameters: Dict[str, inspect.Parameter],
    hints: Mapping[str, Any],
    declarations: Optional[Mapping[str, Declaration]],
    batching: bool,
) -> "List[Field]":
    named = {name: each for name, each in parameters.items() if name != "**"}
    fields = []
    if declarations is None:
        for name in named:
            if name not in hints:
                raise ValueError(f"parameter '{name}' has no type hint, and there is no inputs={{'{name}': …}}")
            fields.append(_read_at(f"input '{name}'", read_hint, name, hints[name], batching))
    else:
        for key, declaration in as_mapping("inputs", declarations).items():
            if key not in named and "**" not in parameters:
                listed = ", ".join(named) or "there are none"
                raise ValueError(f"input '{key}' is not a parameter of the function; its parameters: {listed}")
            fields.append(_read_at(f"input '{key}'", read_declaration, key, declaration))
    if not fields:
        raise ValueError("it has no inputs; expected parameters with type hints, or inputs={'x': ('FP32', [-1, 3])}")
    declared_keys = {each.key for each in fields}
    for name, parameter in named.items():
        if name not in declared_keys and parameter.default is parameter.empty:
            raise ValueError(f"parameter '{name}' has no default, and inputs has no '{name}'")
    return [_with_default(each, named.get(each.key)) for each in fields]


def _with_default(field: Field, parameter: Optional[inspect.Parameter]) -> Field:
    """Return the field, optional if its parameter has a default. Raises ValueError for an optional one without."""
    has_default = parameter is None or parameter.default is not parameter.empty
    if field.optional and not has_default:
        raise ValueError(f"input '{field.key}' is optional, so its parameter needs a default, such as None")
    return field._replace(optional=field.optional or (parameter is not None and has_default))


def _outputs(returned: Any, declarations: Optional[Mapping[str, Declaration]], batching: bool) -> "List[Field]":
    if declarations is not None:
        fields = [
            _read_at(f"output '{key}'", read_declaration, key, each)
            for key, each in as_mapping("outputs", declarations).items()
        ]
    elif returned is None or returned is type(None):
        raise ValueError("it has no return type hint, and there is no outputs={'y': ('FP32', [-1])}")
    else:
        fields = _read_at("the return value", output_fields, returned, batching)
    if not fields:
        raise ValueError("it has no outputs; expected at least one, such as outputs={'y': ('FP32', [-1])}")
    for each in fields:
        if each.optional:
            raise ValueError(f"output '{each.key}' is optional; only inputs can be")
    return fields


def _read_at(where: str, read: Any, *arguments: Any) -> Any:
    try:
        return read(*arguments)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _takes_context(target: Any) -> bool:
    """Return True if the class is made with a `Context`. Raises ValueError if it needs something else."""
    if not isinstance(target, type):
        return False
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        return False
    needed = [each for each in parameters if each.default is each.empty and each.kind not in (2, 4)]
    if len(needed) > 1 or any(each.kind is each.KEYWORD_ONLY for each in needed):
        names = ", ".join(each.name for each in needed)
        raise ValueError(f"its __init__ needs {names}; expected no parameters, or one for a modserve.Context")
    return bool(needed)


def place(target: Any) -> Tuple[str, int]:
    """Return the file and line of a function or class; an empty text if it has none."""
    if isinstance(target, type):
        candidates = [inspect.unwrap(each) for each in vars(target).values() if inspect.isfunction(each)]
    else:
        function = inspect.unwrap(getattr(target, "func", target))
        candidates = [function, getattr(function, "__call__", None)]  # noqa: B004
    codes = [each.__code__ for each in candidates if hasattr(each, "__code__")]
    return min(((code.co_filename, code.co_firstlineno) for code in codes), default=("", 0))


def label_of(target: Any, file_name: "Callable[[str], Optional[str]]" = str) -> str:
    """Return an error prefix: ``model 'double' (functions.py, line 3)``. `file_name` maps files to names or None."""
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None) or repr(target)
    path, line = place(target)
    file = file_name(path)
    return f"model '{name}'" + (f" ({file}, line {line})" if file else "")
