"""TorchScript: ``model.pt`` of ``torch.jit.script`` or ``torch.jit.trace``."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from modserve.core.configuration.model_config import ModelConfig, ModelDescription
from modserve.core.errors import ModserveError, invalid

from ..api import ModelSource
from ..tensors import input_datatypes
from .archive import Form
from .arrays import quiet
from .failures import one_line
from .naming import Argument, OnceLog, bind_arguments, fill
from .options import PyTorchOptions
from .program import LoadedProgram, Run

_log = logging.getLogger(__name__)

_SCALARS = {"IntType": "number", "FloatType": "number", "BoolType": "number", "NumberType": "number"}
_STATEFUL = frozenset({"prim::SetAttr", "prim::CallMethod", "prim::CallFunction"})
"""Operators that change the module, or may, since the code that they call is not visible."""
_CONVOLUTION = "conv"


class TorchScriptProgram:
    form = Form.TORCHSCRIPT

    def __init__(self, source: ModelSource, options: PyTorchOptions, device: Any) -> None:
        self._source = source
        self._options = options
        self._label = f"model '{source.config.name}'"
        self._note = OnceLog(_log)
        self._shared: dict[Any, Any] = {}
        module = self._shared[device] = self._module(device)
        if not hasattr(module, "forward"):
            raise invalid(f"{self._label}: '{source.path}' has no method 'forward'")
        graph, schema = module.inlined_graph, module.forward.schema
        described = [_argument(argument) for argument in schema.arguments[1:]]
        self._arguments = [argument for argument, _ in described]
        self._nullable = [argument.name for argument, nullable in described if nullable]
        self._result = schema.returns[0].type if schema.returns else None
        self._writes_inputs, self.stateful = _changes(graph, [argument.kind for argument in self._arguments])
        if not options.optimize_for_inference and any(_CONVOLUTION in node.kind() for node in _nodes(graph)):
            _log.info(
                "%s has convolutions: parameter 'OPTIMIZE_FOR_INFERENCE' = 'true' is likely "
                "to make it faster on the CPU",
                self._label,
            )

    def describe(self) -> ModelDescription | None:
        config = self._source.config
        if config.inputs and config.outputs:
            return None
        arguments = ", ".join(f"{argument.name}: {argument.type}" for argument in self._arguments)
        raise invalid(
            f"{self._label}: TorchScript does not describe types and shapes, so config.pbtxt must list inputs and "
            f"outputs: its forward takes ({arguments}) and returns {_type_text(self._result)}. Inputs may be called by "
            "these names, or INPUT__0, INPUT__1, …; outputs OUTPUT__0, OUTPUT__1, …"
        )

    def load(self, config: ModelConfig, device: Any, *, fresh: bool) -> LoadedProgram:
        if fresh:
            # The first instance takes the module that was loaded to be looked at.
            module = self._shared.pop(device, None) or self._module(device)
        else:
            module = self._shared.get(device) or self._shared.setdefault(device, self._module(device))
        bound = bind_arguments(self._label, self._arguments, list(input_datatypes(config)), self._note)
        kinds = {template: argument.kind for argument, template in bound if isinstance(template, str)}
        return LoadedProgram(
            _runner(module.forward, self._arguments, bound, self._nullable),
            kinds,
            self._writes_inputs,
            False,
            _paths(self._result),
            device=_device_of(module) if device is None else device,
        )

    def close(self) -> None:
        self._shared.clear()

    def _module(self, device: Any) -> Any:
        path, options = self._source.path, self._options
        try:
            with quiet(), torch.inference_mode(options.inference_mode):
                module = torch.jit.load(str(path), map_location=device).eval()
                if options.precision:
                    module = module.to(getattr(torch, options.precision))
                if options.optimize_for_inference:
                    module = torch.jit.optimize_for_inference(module)
            return module
        except (RuntimeError, ValueError, AttributeError) as error:
            raise _load_failure(self._label, path, error) from error


def _load_failure(label: str, path: object, error: Exception) -> ModserveError:
    text = one_line(str(error))
    hint = ""
    if "Unknown builtin op" in text or "unknown type" in text.lower():
        hint = "; it needs operators that this PyTorch does not have, for instance those of torchvision"
    return invalid(f"failed to load {label} from '{path}': {text}{hint}")


def _runner(forward: Any, arguments: list[Argument], bound: list[tuple[Argument, Any]], nullable: list[str]) -> Run:
    nothing = dict.fromkeys(nullable)

    def by_keyword(values: Mapping[str, Any]) -> Any:
        call = dict(nothing)
        for argument, template in bound:
            try:
                call[argument.name] = fill(template, values)
            except KeyError as error:
                if argument.required:
                    raise invalid(f"the model needs input {error}, but the request does not have it") from None
        return forward(**call)

    def by_place(values: Mapping[str, Any]) -> Any:
        if len(values) < len(names):
            return by_keyword(values)
        return forward(*[values[name] for name in names])

    names = [template for _, template in bound]
    plain = all(isinstance(name, str) for name in names) and [each for each, _ in bound] == arguments
    return by_place if plain else by_keyword


def _argument(argument: Any) -> tuple[Argument, bool]:
    """Read an argument of a schema; also returns whether it must be passed even if there is no value for it."""
    kind, size, optional = _kind(argument.type)
    required = not (argument.has_default_value() or optional)
    text = _type_text(argument.type)
    return Argument(argument.name, kind, text, required, size), optional and not argument.has_default_value()


def _kind(type_: Any) -> tuple[str, int, bool]:
    """Return kind and size of a `naming.Argument`, and whether it is optional."""
    name = type_.kind()
    if name == "OptionalType":
        kind, size, _ = _kind(type_.getElementType())
        return kind, size, True
    if name == "TensorType":
        return "tensor", 0, False
    if name == "StringType":
        return "string", 0, False
    if name in _SCALARS:
        return _SCALARS[name], 0, False
    if name == "ListType":
        element = type_.getElementType().kind()
        return {"TensorType": "list", "StringType": "strings"}.get(element, ""), 0, False
    if name == "DictType" and type_.getValueType().kind() == "TensorType" and type_.getKeyType().kind() == "StringType":
        return "dict", 0, False
    if name == "TupleType" and all(element.kind() == "TensorType" for element in type_.elements()):
        return "tuple", len(type_.elements()), False
    return "", 0, False


def _type_text(type_: Any) -> str:
    return "nothing" if type_ is None else str(getattr(type_, "annotation_str", type_)).replace("__torch__.", "")


def _paths(result: Any) -> list[tuple[int | str, ...]] | None:
    """Return the paths of the results; None if the schema does not tell how many there are."""
    if result is None or result.kind() == "TensorType":
        return [()]
    if result.kind() == "TupleType":
        parts = [_paths(element) for element in result.elements()]
        if all(part == [()] for part in parts):
            return [(index,) for index in range(len(parts))]
    if result.kind() == "ListType" and result.getElementType().kind() == "StringType":
        return [()]
    return None


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


def _changes(graph: Any, kinds: list[str]) -> tuple[bool, bool]:
    """Return whether executions may write to the inputs, and whether they may change the module.

    PyTorch's alias analysis takes inputs and attributes of one type for possibly the same memory, so that a write to
    one counts for all; it does not follow members of lists and dictionaries.
    """
    aliases = graph.alias_db()
    nodes = list(_nodes(graph))
    tensors_only = all(kind in ("tensor", "number") for kind in kinds)
    writes = any(aliases.has_writers(value) for value in graph.inputs()) or (
        not tensors_only and any(node.kind().startswith("aten::") and node.kind().endswith("_") for node in nodes)
    )
    changes = any(node.kind() in _STATEFUL for node in nodes) or any(
        aliases.has_writers(node.output()) for node in nodes if node.kind() == "prim::GetAttr"
    )
    return writes, changes


def _device_of(module: Any) -> Any:
    """Return the device that the model itself needs its inputs on; None for the CPU."""
    parameter = next(module.parameters(), None)
    return None if parameter is None or parameter.device.type == "cpu" else parameter.device
