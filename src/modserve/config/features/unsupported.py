"""Settings that this version of modserve does not act on, and values that the format does not have.

To support a setting, delete its row, or name the backends that act on it. A setting that changes responses, or decides
whether a model runs at all, fails the load: a model that seems to work but responds wrongly is worse than none. One
that only changes the speed, or what can be observed, gives a warning.
"""

from collections.abc import Callable, Iterator, Sequence
from operator import not_
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from modserve.pb import inference as pb

from ..text.problems import Faults, FieldPath, Problems, show
from . import checksums

_OWN_MEMORY = "each new state has its own memory"


class Unsupported(NamedTuple):
    """A field, why it is listed, the values that matter (default: all but empty ones), and the part that acts on it."""

    path: str
    fails: bool
    why: str
    matters: Callable[[object], bool] = bool
    supported_by: frozenset[str] = frozenset()
    """The backends that act on it. They say themselves what they cannot do."""


_ONNX_RUNTIME = frozenset({"onnxruntime"})
_WITH_OPERATORS = frozenset({"onnxruntime", "tensorflow"})

SETTINGS = (
    Unsupported("input.is_shape_tensor", True, "it is for TensorRT"),
    Unsupported("output.is_shape_tensor", True, "it is for TensorRT"),
    Unsupported("input.is_non_linear_format_io", True, "it is for TensorRT"),
    Unsupported("output.is_non_linear_format_io", True, "it is for TensorRT"),
    Unsupported("model_repository_agents", True, "'checksum' is the only supported agent", checksums.others),
    Unsupported("model_operations", True, "the model would lack these operations", supported_by=_WITH_OPERATORS),
    Unsupported("instance_group.passive", True, "the instances would take requests"),
    Unsupported("ensemble_scheduling.step.model_namespace", True, "a step uses the only model of its name"),
    Unsupported("runtime", False, "each backend has one implementation", supported_by=frozenset({"pytorch"})),
    Unsupported("cc_model_filenames", False, "default_model_filename is used on every device"),
    Unsupported("optimization.priority", False, "all models have the same priority"),
    Unsupported("optimization.cuda", False, "no CUDA graphs are captured"),
    Unsupported(
        "optimization.execution_accelerators", False, "the engine runs without them", supported_by=_ONNX_RUNTIME
    ),
    Unsupported("optimization.input_pinned_memory.enable", False, "pinned memory is never used", not_),
    Unsupported("optimization.output_pinned_memory.enable", False, "pinned memory is never used", not_),
    Unsupported("optimization.gather_kernel_buffer_threshold", False, "inputs are gathered by copying"),
    Unsupported("optimization.eager_batching", False, "a batch is formed when an instance is free"),
    Unsupported("instance_group.secondary_devices", False, "secondary devices are not used"),
    Unsupported("instance_group.host_policy", False, "instances are not pinned to cores or memory"),
    Unsupported("sequence_batching.state.use_same_buffer_for_input_output", False, _OWN_MEMORY),
)


def check(message: pb.ModelConfig, problems: Problems) -> None:
    """Adds a problem for each setting that must not be ignored, and a warning for each one that is."""
    for setting in SETTINGS:
        if message.backend in setting.supported_by:
            continue
        for path, value in _values(message, setting.path.split("."), ()):
            if setting.matters(value):
                add, verdict = (problems.add, "not supported") if setting.fails else (problems.warn, "ignored")
                add(path, f"'{show(path)}' is {verdict} by this version of modserve: {setting.why}")


def _values(message: Message, names: Sequence[str], path: FieldPath) -> Iterator[tuple[FieldPath, object]]:
    """Yield each value of a field that is present, in whatever blocks and lists of blocks."""
    name, *rest = names
    if message.DESCRIPTOR.fields_by_name[name].has_presence and not message.HasField(name):
        return
    value = getattr(message, name)
    path = (*path, name)
    if not rest:
        yield path, value
    elif isinstance(value, Message):
        yield from _values(value, rest, path)
    else:
        for index, element in enumerate(value):
            yield from _values(element, rest, (*path, index))


def unknown_values(message: Message, path: FieldPath = ()) -> Faults:
    """Enum values without a name: they can be written as numbers, and protobuf accepts any number."""
    for field, value in message.ListFields():
        for place, element in _elements(field, value):
            here = (*path, field.name, *place)
            if isinstance(element, Message):
                yield from unknown_values(element, here)
            elif field.enum_type is not None and element not in field.enum_type.values_by_number:
                names = ", ".join(field.enum_type.values_by_name)
                yield here, f"unknown value {element} for '{field.name}'; it takes {names}"


def _elements(field: FieldDescriptor, value: Any) -> Iterator[tuple[FieldPath, object]]:
    """Yield the value of a field, or each value of a list or map with its place in there."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        yield from (((key,), element) for key, element in value.items())
    elif isinstance(value, Message | str | int | float):
        yield (), value
    else:
        yield from (((index,), element) for index, element in enumerate(value))
