"""Functions and classes as models: the decorator ``modserve.model``.

A decorated object stays unchanged, so that it can be called and tested; its `Definition` is its attribute `MARK`. The
definition has all facts for the server, and `adapter` runs the object as any model.py.
"""

from typing import Any, Callable, Mapping, Optional, TypeVar, Union, overload

from .definition import Context, Definition, Instances, Options, define, label_of
from .fields import Declaration, Spec
from .function_values import InvalidInputError

__all__ = ["MARK", "Context", "InvalidInputError", "Spec", "definition_of", "find", "model"]

MARK = "__modserve_model__"

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


@overload
def model(target: Decorated) -> Decorated: ...
@overload
def model(
    *,
    inputs: Optional[Mapping[str, Declaration]] = None,
    outputs: Optional[Mapping[str, Declaration]] = None,
    max_batch_size: int = 0,
    dynamic_batching: Union[bool, Mapping[str, Any], None] = None,
    instances: Instances = 1,
    isolation: str = "process",
    config: Optional[Mapping[str, Any]] = None,
) -> Callable[[Decorated], Decorated]: ...
def model(
    target: Any = None,
    *,
    inputs: Optional[Mapping[str, Declaration]] = None,
    outputs: Optional[Mapping[str, Declaration]] = None,
    max_batch_size: int = 0,
    dynamic_batching: Union[bool, Mapping[str, Any], None] = None,
    instances: Instances = 1,
    isolation: str = "process",
    config: Optional[Mapping[str, Any]] = None,
) -> Any:
    """Make a model of a function, or of a class with ``predict`` or ``__call__``. The object itself does not change.

    `inputs` and `outputs` declare tensors as ``(datatype, shape)``, the shape without the batch dimension; by default
    they come from type hints. With a `max_batch_size` above 0 the function gets arrays with a batch dimension in front,
    requests are batched up to that size, and outputs must have as many rows as the inputs. `dynamic_batching` switches
    batching off, or is that part of a configuration. A function that takes or returns single values (``str``,
    ``float``, …) is called once for each row. It returns one value, a tuple or a dict; a generator streams one response
    for each value; both may be ``async def``.

    `instances` is a number, or the ``instance_group`` of a configuration. `isolation` is ``"process"`` (each instance
    in its own process), ``"thread"`` (in the server's) or ``"inline"`` (on the server's event loop, for some
    microseconds of work). `config` has other parts of a configuration, as JSON. Each instance makes one object of a
    class; ``__init__`` takes nothing or a `Context`; ``close()`` and ``is_ready()`` are optional.

    Raises TypeError for anything that cannot be a model.
    """
    options = Options(
        inputs, outputs, max_batch_size, dynamic_batching, instances, isolation, {} if config is None else config
    )
    return (lambda target: _decorate(target, options)) if target is None else _decorate(target, options)


def _decorate(target: Any, options: Options) -> Any:
    try:
        definition = define(target, options)
    except ValueError as error:
        raise TypeError(f"{label_of(target)}: {error}") from None
    try:
        setattr(target, MARK, definition)
    except (AttributeError, TypeError):
        kind = type(target).__name__
        text = f"{label_of(target)}: a {kind} cannot be decorated; decorate a function that calls it"
        raise TypeError(text) from None
    return target


def definition_of(target: object) -> Optional[Definition]:
    """Return the decorator's definition of an object; None if it was not decorated itself, such as a derived class."""
    definition: Any = getattr(target, MARK, None)
    return definition if definition is not None and getattr(definition, "target", None) is target else None


def find(module: Any) -> Optional[Definition]:
    """Return a module's model: the decorated object called ``model``, or the only one. None for a module without any.

    Objects that the module itself defines come before imported ones. Raises TypeError for several.
    """
    named = definition_of(vars(module).get("model"))
    if named is not None:
        return named
    pairs = [(name, definition_of(value)) for name, value in vars(module).items()]
    models = {name: definition for name, definition in pairs if definition is not None}
    own = {name: each for name, each in models.items() if getattr(each.target, "__module__", "") == module.__name__}
    distinct = {id(each): each for each in (own or models).values()}
    if len(distinct) > 1:
        listed = ", ".join(sorted(own or models))
        raise TypeError(
            f"{module.__file__} has several decorated models ({listed}); expected one, or one called 'model'"
        )
    return next(iter(distinct.values()), None)
