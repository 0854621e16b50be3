"""A model before it is compiled: its file, its graph and its shapes."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from modserve.core.configuration.model_config import DescribedTensor, ModelConfig, TensorSpec
from modserve.core.errors import invalid, unsupported

from ..tensors import input_datatypes, output_datatypes
from .compression import compress_weights
from .library import ov
from .messages import one_line, with_hint
from .names import DATATYPES, Port, find, labels
from .options import OpenVinoOptions
from .shapes import AUTO, partial_shape

_MOST_OPERATORS = 4096
"""Largest number of operators; a graph of more takes long, whatever they do."""
_SHAPED_BY_VALUES = re.compile(
    "Broadcast|DetectionOutput|Eye|ExperimentalDetectron|GenerateProposals|If|Interpolate|Loop|MatrixNms|Multiclass|"
    "NonMaxSuppression|NonZero|OneHot|Pad|Proposal|Range|SearchSorted|TensorIterator|Tile|TopK|Unique"
)
"""Prefixes of operators with work that grows with the values of an input. Some are harmless with a constant."""
_EXACT_CONSUMERS = frozenset({"Result", "Convert", "ShapeOf"})
"""Operators that take a 64-bit integer unchanged, even on the CPU."""
_ADVICE = (
    "; with the parameter SKIP_OV_DYNAMIC_BATCHSIZE=YES all executions have max_batch_size rows, and with "
    "ENABLE_BATCH_PADDING=YES smaller batches are filled up to that; or set max_batch_size: 0"
)


@dataclass(frozen=True, slots=True)
class Graph:
    """A loaded graph. `inputs` and `outputs` are its ports by their configured names, in order."""

    model: Any
    inputs: dict[str, Port]
    outputs: dict[str, Port]
    fixed_batch: int
    """The rows of every execution; 0 = any number."""
    padding: bool
    """True if smaller batches are padded to that size."""
    has_state: bool
    data_dependent: bool
    narrowed: frozenset[str]
    """Inputs of 64-bit integers that the CPU computes with in 32 bits."""


def load(core: Any, path: Path, config: ModelConfig, options: OpenVinoOptions) -> Graph:
    """Read a model and give it the shapes that its configuration wants. Raises INVALID_ARG, or UNSUPPORTED."""
    model = _read(core, path, config.name, options)
    if options.compressed and not compress_weights(model):
        raise invalid(
            f"model '{config.name}': parameter 'WEIGHT_COMPRESSION' has nothing to compress: the file has no large "
            "constant matrix to multiply by"
        )
    if options.layouts:
        model = _with_layouts(model, config, options)
    fixed_batch = config.max_batch_size if options.fixed_batch else 0
    _reshape(model, config, options, fixed_batch)
    inputs = _by_label(_ports(model.inputs), input_datatypes(config))
    outputs = _by_label(_ports(model.outputs), output_datatypes(config))
    operators = model.get_ops()
    return Graph(
        model,
        inputs,
        outputs,
        fixed_batch,
        options.padding,
        bool(model.get_variables()),
        len(operators) > _MOST_OPERATORS or any(_SHAPED_BY_VALUES.match(each.get_type_name()) for each in operators),
        frozenset(name for name, port in inputs.items() if _is_narrowed(port, model)),
    )


def describe_tensors(
    ports: dict[str, Port], specs: Iterable[TensorSpec], graph: Graph, model: str
) -> list[DescribedTensor]:
    """Describe tensors. Raises UNSUPPORTED for a datatype that the protocol, or this backend, lacks."""
    configured = {spec.name: spec for spec in specs}
    tensors = []
    for name, port in ports.items():
        datatype = DATATYPES.get(port.element_type)
        if datatype is None:
            hint = ""
            if port.element_type == "string":
                hint = (
                    ": this backend does not support strings, because OpenVINO has their "
                    "operators in a separate package. Convert text before the model, for instance with a Python model "
                    'and an ensemble; ONNX models with strings run with backend: "onnxruntime"'
                )
            raise unsupported(f"model '{model}': tensor '{name}' has OpenVINO's type '{port.element_type}'{hint}")
        shape = port.shape
        if shape is None:
            if name not in configured:
                raise invalid(
                    f"model '{model}': the graph does not say how many dimensions tensor '{name}' "
                    "has: set its dims in the configuration"
                )
            shape = configured[name].reshape or configured[name].dims
        elif graph.fixed_batch and shape:
            shape = (-1, *shape[1:])
        tensors.append(DescribedTensor(name, datatype, shape))
    return tensors


def _read(core: Any, path: Path, model: str, options: OpenVinoOptions) -> Any:
    try:
        if options.tag and path.is_dir():
            frontend = ov.frontend.FrontEndManager().load_by_framework("tf")
            return frontend.convert(frontend.load([str(path), options.tag]))
        return core.read_model(str(path), **({} if options.mapped else {"config": {"ENABLE_MMAP": False}}))
    except Exception as error:  # OpenVINO's exceptions are RuntimeErrors, but a damaged file's text may be no UTF-8
        text = one_line(str(error))
        raise invalid(f"failed to load model '{model}' from '{path}': {with_hint(text)}") from error


def _with_layouts(model: Any, config: ModelConfig, options: OpenVinoOptions) -> Any:
    """Return the model with transpositions in front of it and behind it. Raises INVALID_ARG."""
    inputs, outputs = _ports(model.inputs), _ports(model.outputs)
    steps = ov.preprocess.PrePostProcessor(model)
    for name, (seen, own) in options.layouts.items():
        source = inputs[0] if not name and len(inputs) == 1 else find(inputs, name)
        target = find(outputs, name)
        if source is None and target is None:
            raise _no_tensor(config, "LAYOUT", name, [*inputs, *outputs])
        side = steps.input(source.index) if source is not None else steps.output(target.index if target else 0)
        side.tensor().set_layout(ov.Layout(seen))
        side.model().set_layout(ov.Layout(own))
    try:
        return steps.build()
    except RuntimeError as error:
        raise invalid(f"model '{config.name}': parameter 'LAYOUT' does not fit: {one_line(str(error))}") from error


def _reshape(model: Any, config: ModelConfig, options: OpenVinoOptions, fixed_batch: int) -> None:
    """Reshape the model in place. Raises INVALID_ARG for shapes that the graph does not take."""
    ports = _ports(model.inputs)
    specs = config.inputs_by_name
    names = labels(ports, input_datatypes(config))
    by_port = _shapes_by_port(config, options, ports)
    shapes: dict[int, Any] = {}
    freed = False
    for port, name in zip(ports, names, strict=True):
        before = model.inputs[port.index].partial_shape
        shape = before
        if (options.reshape or port.shape is None) and name in specs:
            dims = specs[name].reshape if specs[name].reshape is not None else specs[name].dims
            shape = ov.PartialShape(partial_shape((-1, *(dims or ())) if config.batching else dims or ()))
        text = by_port.get(port.index)
        if text == AUTO and port.shape is not None:
            shape = ov.PartialShape(partial_shape([-1] * len(port.shape)))
        elif text:
            shape = ov.PartialShape(text)
        if config.batching and shape.rank.is_static and len(shape) and (fixed_batch or shape[0].is_static):
            freed = freed or not fixed_batch
            shape = ov.PartialShape([ov.Dimension(fixed_batch or -1), *list(shape)[1:]])
        if shape != before:
            shapes[port.index] = shape
    if not shapes:
        return
    advice = _ADVICE if freed else ""
    new_shapes = ", ".join(f"'{names[index]}' {shape}" for index, shape in shapes.items())
    try:
        model.reshape(shapes)
    except Exception as error:
        text = one_line(str(error))
        raise invalid(f"model '{config.name}': its graph does not take {new_shapes}: {text}{advice}") from error
    if freed:
        for port in _ports(model.outputs):
            if port.shape and port.shape[0] >= 0:
                raise invalid(
                    f"model '{config.name}': max_batch_size is {config.max_batch_size}, but output '{_any_name(port)}' "
                    f"has {port.shape[0]} rows for every batch size{advice}"
                )


def _shapes_by_port(config: ModelConfig, options: OpenVinoOptions, ports: list[Port]) -> dict[int, str]:
    shapes: dict[int, str] = {}
    for name, text in options.shapes.items():
        if not name and (text == AUTO or len(ports) == 1):
            shapes.update((port.index, text) for port in ports)
            continue
        port = find(ports, name)
        if port is None:
            raise _no_tensor(config, "SHAPE", name, ports)
        shapes[port.index] = text
    return shapes


def _no_tensor(config: ModelConfig, parameter: str, name: str, ports: list[Port]) -> Exception:
    what = f"there is no tensor '{name}'" if name else "expected a JSON object with the names of tensors"
    known = ", ".join(_any_name(port) for port in ports)
    return invalid(f"model '{config.name}': parameter '{parameter}': {what}; the graph has {known}")


def _any_name(port: Port) -> str:
    return labels([replace(port, index=0)], ())[0]


def _ports(outputs: Iterable[Any]) -> list[Port]:
    ports = []
    for index, output in enumerate(outputs):
        node = output.get_node()
        if node.get_type_name() == "Result":
            node = node.input_value(0).get_node()
        shape = output.partial_shape
        ports.append(
            Port(
                index,
                frozenset(output.get_names()),
                node.friendly_name,
                output.element_type.get_type_name(),
                tuple(size.get_length() if size.is_static else -1 for size in shape) if shape.rank.is_static else None,
            )
        )
    return ports


def _by_label(ports: list[Port], configured: Collection[str]) -> dict[str, Port]:
    return dict(zip(labels(ports, configured), ports, strict=True))


def _is_narrowed(port: Port, model: Any) -> bool:
    consumers = {target.get_node().get_type_name() for target in model.inputs[port.index].get_target_inputs()}
    return port.element_type in ("i64", "u64") and not consumers <= _EXACT_CONSUMERS
