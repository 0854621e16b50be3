"""Files of TensorFlow models: their tags, signatures, tensors and operators."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from google.protobuf import text_format
from google.protobuf.message import DecodeError, Message
from tensorflow.core.framework import graph_pb2, types_pb2
from tensorflow.core.protobuf import saved_model_pb2

from modserve.core.configuration.model_config import DescribedTensor, ModelConfig
from modserve.core.errors import invalid
from modserve.core.files import regular_file
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype

from .options import DEFAULT_SIGNATURE, SAVED_MODEL_FILES, SIGNATURE, TAG

_DATATYPES: Mapping[int, Datatype] = {
    1: dtypes.FP32,
    2: dtypes.FP64,
    3: dtypes.INT32,
    4: dtypes.UINT8,
    5: dtypes.INT16,
    6: dtypes.INT8,
    7: dtypes.BYTES,
    9: dtypes.INT64,
    10: dtypes.BOOL,
    14: dtypes.BF16,
    17: dtypes.UINT16,
    19: dtypes.FP16,
    22: dtypes.UINT32,
    23: dtypes.UINT64,
}
"""Datatypes by the numbers of ``tensorflow.DataType`` (tensorflow/core/framework/types.proto)."""
_INTERNAL_SIGNATURES = frozenset({"__saved_model_init_op", "__saved_model_train_op"})
_PLACEHOLDERS = frozenset({"Placeholder", "PlaceholderWithDefault", "PlaceholderV2"})
_NO_OUTPUTS = frozenset({"NoOp", "Assert", "Const"})
_BY_VALUES = re.compile(
    "While|If|Case|Switch|Merge|Enter|Where|Unique|BooleanMask|NonMaxSuppression|Range|Fill|Tile|String|Regex|Lookup|"
    "Hash|Ragged|Sparse|Dynamic|Iterator|PyFunc|Queue|Print|TopK|OneHot|Pad|Repeat|Bincount|Resize|Decode|Map"
)
"""Parts of names of operators with work or output that grows with the values of an input."""
_MOST_NODES = 4096
_MOST_NAMES = 20


@dataclass(frozen=True)
class GraphSignature:
    """Tensors of a model: their names for clients, their names in the graph, and their types."""

    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    described_inputs: tuple[DescribedTensor, ...]
    described_outputs: tuple[DescribedTensor, ...]
    name: str = ""


def read_saved_model(directory: Path, name: str) -> saved_model_pb2.SavedModel:
    """Read a SavedModel. Raises INVALID_ARG."""
    file = next((directory / each for each in SAVED_MODEL_FILES if (directory / each).is_file()), None)
    if file is None:
        raise invalid(
            f"failed to load model '{name}' from '{directory}': a SavedModel is a folder with 'saved_model.pb', which "
            "this one lacks"
        )
    message = saved_model_pb2.SavedModel()
    if file.suffix == ".pb":
        _parse(message, file, name)
    else:
        try:
            text_format.Parse(regular_file.read_text(file), message)
        except (text_format.ParseError, UnicodeDecodeError) as error:
            raise invalid(f"failed to load model '{name}' from '{file}': {error}") from error
    if not message.meta_graphs:
        raise invalid(f"failed to load model '{name}' from '{file}': it is not a SavedModel: it has no graph")
    return message


def read_graph(file: Path, name: str) -> graph_pb2.GraphDef:
    """Read a frozen graph. Raises INVALID_ARG."""
    message = graph_pb2.GraphDef()
    _parse(message, file, name)
    if not message.node:
        raise invalid(f"failed to load model '{name}' from '{file}': model {name} has an empty network")
    return message


def _parse(message: Message, file: Path, name: str) -> None:
    try:
        message.ParseFromString(regular_file.read_bytes(file))
    except DecodeError as error:
        raise invalid(
            f"failed to load model '{name}' from '{file}': it is truncated or not a TensorFlow file: {error}"
        ) from error


def find_tagged(model: saved_model_pb2.SavedModel, tag: str, name: str) -> Any:
    """Return the graph with this exact tag, as TensorFlow's loader does. Raises INVALID_ARG with the tags there are."""
    tags = [sorted(graph.meta_info_def.tags) for graph in model.meta_graphs]
    for graph, its_tags in zip(model.meta_graphs, tags, strict=True):
        if its_tags == [tag]:
            return graph
    shown = "; ".join(", ".join(map(repr, each)) or "none" for each in tags)
    raise invalid(
        f"unable to load model '{name}', expected '{tag}' tag; the tags of its graphs are: {shown}. Parameter '{TAG}' "
        "chooses"
    )


def signature_of(graph: Any, wanted_name: str, config: ModelConfig) -> GraphSignature:
    """Return the signature of that name, or by default ``serving_default``, or the first one there is.

    Raises INVALID_ARG with the names there are.
    """
    signatures = graph.signature_def
    names = sorted(signatures.keys() - _INTERNAL_SIGNATURES)
    name = wanted_name or (DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in names else next(iter(names), ""))
    if name not in names:
        there = f"it has: {', '.join(map(repr, names[:_MOST_NAMES]))}" if names else "it has none"
        raise invalid(
            f"unable to load model '{config.name}', expected '{name or DEFAULT_SIGNATURE}' signature; {there}. "
            f"Parameter '{SIGNATURE}' chooses; tf.saved_model.save(model, folder, signatures=…) writes them"
        )
    signature = signatures[name]
    inputs = {key: signature.inputs[key] for key in sorted(signature.inputs)}
    outputs = {key: signature.outputs[key] for key in sorted(signature.outputs)}
    if config.outputs:
        named = {*config.outputs_by_name, *config.state_outputs}
        outputs = {key: info for key, info in outputs.items() if _is_servable(info) or key in named}
    return GraphSignature(
        {key: info.name for key, info in inputs.items()},
        {key: info.name for key, info in outputs.items()},
        tuple(_describe_info(key, info, config) for key, info in inputs.items()),
        tuple(_describe_info(key, info, config) for key, info in outputs.items()),
        name,
    )


def _is_servable(info: Any) -> bool:
    return info.WhichOneof("encoding") == "name" and info.dtype in _DATATYPES


def _describe_info(name: str, info: Any, config: ModelConfig) -> DescribedTensor:
    if info.WhichOneof("encoding") != "name":
        raise invalid(f"tensor '{name}' of model '{config.name}' is sparse or composite; expected a plain tensor")
    return describe_tensor(name, info.dtype, info.tensor_shape, config)


def describe_tensor(name: str, dtype: int, shape: Any, config: ModelConfig) -> DescribedTensor:
    """Describe a tensor by its TensorShapeProto; the configuration supplies a missing rank. Raises INVALID_ARG."""
    datatype = _DATATYPES.get(dtype)
    if datatype is None:
        raise invalid(
            f"tensor '{name}' of model '{config.name}' is of type {dtype_name(dtype)}, which v2 does not have"
        )
    if not shape.unknown_rank:
        return DescribedTensor(name, datatype, tuple(dim.size for dim in shape.dim))
    spec = config.inputs_by_name.get(name) or config.outputs_by_name.get(name)
    if spec is None or not spec.dims:
        raise invalid(
            f"tensor '{name}' of model '{config.name}' may have any number of dimensions: set its dims "
            "in the configuration"
        )
    dims = spec.dims if spec.reshape is None else spec.reshape
    return DescribedTensor(name, datatype, (-1, *dims) if config.max_batch_size else dims)


def dtype_name(dtype: int) -> str:
    return str(types_pb2.DataType.Name(dtype))


def signature_of_graph(graph: graph_pb2.GraphDef, tensors: Any, config: ModelConfig) -> GraphSignature:
    """Return a frozen graph's signature: by the configuration's names, else its placeholders and its last operators.

    `tensors` is the graph as imported. Triton's configuration must name them; a graph has no other names.
    Raises INVALID_ARG with the names there are.
    """
    placeholders = [node.name for node in graph.node if node.op in _PLACEHOLDERS]
    inner = {name.partition(":")[0].lstrip("^") for node in graph.node for name in node.input}
    last = [node.name for node in graph.node if node.name not in inner and node.op not in _PLACEHOLDERS | _NO_OUTPUTS]
    inputs = [spec.name for spec in config.inputs] or placeholders
    outputs = [spec.name for spec in config.outputs] or last
    if config.sequence_batching is not None:
        inputs += [name for name, _ in config.sequence_batching.inputs if name not in inputs]
        outputs += [name for name, _ in config.sequence_batching.state_outputs if name not in outputs]
    nodes = {node.name for node in graph.node}
    for name in inputs:
        if name.partition(":")[0] not in placeholders:
            _raise_unexpected("input", name, placeholders, config)
    for name in outputs:
        if name.partition(":")[0] not in nodes:
            _raise_unexpected("output", name, last, config)

    def tensor(name: str) -> Any:
        try:
            return tensors.get_tensor_by_name(name if ":" in name else f"{name}:0")
        except (KeyError, ValueError) as error:
            raise invalid(f"model '{config.name}' has no tensor '{name}': {error}") from error

    def describe(name: str) -> DescribedTensor:
        value = tensor(name)
        return describe_tensor(name, value.dtype.as_datatype_enum, value.shape.as_proto(), config)

    return GraphSignature(
        {name: tensor(name).name for name in inputs},
        {name: tensor(name).name for name in outputs},
        tuple(map(describe, inputs)),
        tuple(map(describe, outputs)),
    )


def _raise_unexpected(kind: str, name: str, allowed: list[str], config: ModelConfig) -> NoReturn:
    shown = ", ".join(allowed[:_MOST_NAMES])
    raise invalid(f"unexpected inference {kind} '{name}', allowed {kind}s are: {shown} (model '{config.name}')")


def depends_on_data(graph: graph_pb2.GraphDef, outputs: Iterable[str]) -> bool:
    """Return whether executions may take very different times for inputs of the same shapes, by the operators that run.

    `outputs` are the names of tensors. What saves and restores the variables is in the graph, too, and does not count.
    """
    nodes = {node.name: node for node in graph.node}
    functions = {function.signature.name: function for function in graph.library.function}
    todo = [name.partition(":")[0] for name in outputs]
    seen = set(todo)
    pending = [nodes[name] for name in todo if name in nodes]
    count = 0
    while pending:
        node = pending.pop()
        count += 1
        if count > _MOST_NODES or _BY_VALUES.search(node.op):
            return True
        inputs = [name.lstrip("^").partition(":")[0] for name in node.input]
        called = [node.op, *(value.func.name for value in node.attr.values() if value.WhichOneof("value") == "func")]
        for name in {*inputs} & nodes.keys() - seen:
            seen.add(name)
            pending.append(nodes[name])
        for name in {*called} & functions.keys() - seen:
            seen.add(name)
            # Names inside a function are its own: all of its operators count, and their inputs are among them.
            for inner in functions[name].node_def:
                copy = type(inner)()
                copy.CopyFrom(inner)
                del copy.input[:]
                pending.append(copy)
    return False
