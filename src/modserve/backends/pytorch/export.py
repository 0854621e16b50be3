"""Programs of ``torch.export`` (``model.pt2``), and packages that were compiled ahead of time from them."""

import logging
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any

# Without these checks compiled code reads as many bytes as it was compiled for, whatever shapes clients send.
os.environ.setdefault("AOTI_RUNTIME_CHECK_INPUTS", "1")

import torch
from torch.export.passes import move_to_device_pass
from torch.utils import _pytree as pytree

from modserve.core.configuration.model_config import DescribedTensor, ModelConfig, ModelDescription
from modserve.core.errors import ModserveError, invalid

from ..api import ModelSource
from ..options import default_max_batch_size
from ..tensors import input_datatypes, output_datatypes
from .archive import Form
from .arrays import DATATYPES, quiet
from .failures import one_line
from .naming import (
    OnceLog,
    ProgramTensor,
    Structure,
    bind,
    bind_results,
    fill,
    name_part,
    parse_structure,
    program_inputs,
)
from .options import PyTorchOptions
from .program import LoadedProgram, Run
from .trust import check_archive

_log = logging.getLogger(__name__)


class ExportedProgram:
    form = Form.EXPORTED

    def __init__(self, source: ModelSource, options: PyTorchOptions) -> None:
        self._source = source
        self._options = options
        self._label = f"model '{source.config.name}'"
        check_archive(source.path)
        program = self._load()
        signature = program.graph_signature
        written = _find_written(program)
        inputs = {name for name in signature.user_inputs if isinstance(name, str)}
        self._writes_inputs = bool(written & inputs)
        self.stateful = bool(written - inputs)
        self._inputs = parse_structure(pytree.treespec_dumps(program.call_spec.in_spec))
        self._outputs = parse_structure(pytree.treespec_dumps(program.call_spec.out_spec))
        self._values = _values(program)
        call = program.module_call_graph[0].signature
        self._slots = program_inputs(self._inputs, getattr(call, "forward_arg_names", None) or ())
        self._input_specs = list(signature.user_inputs)
        self._output_specs = list(signature.user_outputs)
        self._unused: Any = program
        """Program loaded for inspection. The first instance takes it."""
        self._note = OnceLog(_log)
        self._shared: dict[Any, Any] = {}

    def describe(self) -> ModelDescription:
        config = self._source.config
        names, results = self._choose_names(config)
        inputs = [
            self._describe_tensor(name, spec)
            for name, spec in zip(names, self._input_specs, strict=True)
            if self._is_tensor(spec)
        ]
        outputs = [
            self._describe_tensor(name, spec)
            for name, spec in zip(results, self._output_specs, strict=True)
            if self._is_tensor(spec)
        ]
        most = default_max_batch_size(self._source.options)
        return ModelDescription(tuple(inputs), tuple(outputs), most)

    def load(self, config: ModelConfig, device: Any, *, fresh: bool) -> LoadedProgram:
        module = self._shared.get(device) if not fresh else None
        if module is None:
            program, self._unused = self._unused or self._load(), None
            module = _module(program, self._options, device, self._label)
            if not fresh:
                self._shared[device] = module
        constants = {place: spec for place, spec in enumerate(self._input_specs) if not self._is_tensor(spec)}
        return LoadedProgram(
            _runner(module, self._inputs, _bind_leaves(self._label, config, self._slots, constants, self._note)),
            {},
            self._writes_inputs,
            _returns_attributes(module),
            self._outputs.paths(),
            device=device,
        )

    def close(self) -> None:
        self._shared.clear()
        self._unused = None

    def _load(self) -> Any:
        try:
            with quiet():
                return torch.export.load(str(self._source.path))
        except Exception as error:  # it raises whatever its parts raise
            raise _load_failure(self._label, self._source.path, error) from error

    def _is_tensor(self, spec: object) -> bool:
        return isinstance(spec, str) and isinstance(self._values.get(spec), torch.Tensor)

    def _choose_names(self, config: ModelConfig) -> tuple[list[str], list[str]]:
        """Return the names of all inputs and outputs of the program: the configured ones, or the best of its own."""
        names = [slot.names[0] for slot in self._slots]
        if config.inputs:
            for name, place in bind(
                self._label, "input", list(input_datatypes(config)), self._slots, lambda _: None
            ).items():
                names[place] = name
        paths = self._outputs.paths()
        results = [
            name_part(str(path[0]), path[1:]) if path and isinstance(path[0], str) else f"OUTPUT__{place}"
            for place, path in enumerate(paths)
        ]
        if config.outputs:
            for name, place in bind_results(self._label, list(output_datatypes(config)), paths).items():
                results[place] = name
        return names, results

    def _describe_tensor(self, name: str, spec: str) -> DescribedTensor:
        value = self._values[spec]
        datatype = DATATYPES.get(value.dtype)
        if datatype is None:
            raise invalid(f"{self._label}: '{name}' is a tensor of {value.dtype}, which has no v2 datatype")
        shape = tuple(size if isinstance(size, int) else -1 for size in value.shape)
        symbols = tuple("" if isinstance(size, int) else str(size) for size in value.shape)
        return DescribedTensor(name, datatype, shape, symbols=symbols)


class CompiledProgram:
    """A package of ``torch._inductor.aoti_compile_and_package``: native code, for one kind of device."""

    form = Form.COMPILED
    stateful = False  # or it cannot be seen: ENABLE_WEIGHT_SHARING then says what is to be done

    def __init__(self, source: ModelSource, device: Any) -> None:
        self._source = source
        self._label = f"model '{source.config.name}'"
        self._note = OnceLog(_log)
        self._shared: dict[Any, Any] = {device: self._load(device)}
        inputs, outputs = self._shared[device].loader.get_call_spec()
        self._inputs, self._outputs = parse_structure(inputs), parse_structure(outputs)
        self._slots = program_inputs(self._inputs)

    def describe(self) -> ModelDescription | None:
        config = self._source.config
        if config.inputs and config.outputs:
            return None
        names = ", ".join(slot.names[0] for slot in self._slots)
        results = ", ".join(name_part("RESULT", path) for path in self._outputs.paths())
        raise invalid(
            f"{self._label}: a compiled package does not describe types and shapes, so config.pbtxt must list inputs "
            f"and outputs. It takes {names} (or INPUT__0, INPUT__1, …) and returns {results} (or OUTPUT__0, …)"
        )

    def load(self, config: ModelConfig, device: Any, *, fresh: bool) -> LoadedProgram:
        package = self._shared.pop(device, None) or self._load(device)
        if not fresh:
            self._shared[device] = package
        places = bind(self._label, "input", list(input_datatypes(config)), self._slots, self._note)
        names = [name for name, _ in sorted(places.items(), key=lambda item: item[1])]
        _check_all(self._label, self._slots, places.values())
        loader = package.loader
        if device is None:
            device = torch.device(loader.get_metadata().get("AOTI_DEVICE_KEY") or "cpu")

        def run(values: Mapping[str, Any]) -> Any:
            try:
                return loader.boxed_run([values[name] for name in names])
            except KeyError as error:
                raise _missing(error) from None

        # Nothing says whether it writes to its inputs.
        return LoadedProgram(run, {}, True, False, self._outputs.paths(), flat=True, device=device)

    def close(self) -> None:
        self._shared.clear()

    def _load(self, device: Any) -> Any:
        path = self._source.path
        index = -1 if device is None or device.index is None else device.index
        try:
            with quiet():
                package = torch._inductor.aoti_load_package(str(path), device_index=index)
        except Exception as error:  # as above
            raise _load_failure(self._label, path, error) from error
        built_for = package.loader.get_metadata().get("AOTI_DEVICE_KEY", "")
        if device is not None and built_for not in ("", device.type):
            raise invalid(f"{self._label}: '{path}' was compiled for {built_for}, but the instance is on {device.type}")
        return package


class _Constant:
    """An argument that the program was exported with, and that is no tensor."""

    def __init__(self, value: object) -> None:
        self.value = value


def _bind_leaves(
    label: str, config: ModelConfig, slots: Sequence[ProgramTensor], constants: Mapping[int, object], note: OnceLog
) -> list[Any]:
    """Return for each leaf of a program's inputs the name of the input, or the constant. Raises INVALID_ARG."""
    places = bind(label, "input", list(input_datatypes(config)), slots, note)
    _check_all(label, slots, [*places.values(), *constants])
    leaves: dict[int, Any] = {place: _Constant(value) for place, value in constants.items()}
    leaves.update({place: name for name, place in places.items()})
    return [leaves[place] for place in range(len(slots))]


def _check_all(label: str, slots: Sequence[ProgramTensor], places: Iterable[int]) -> None:
    missing = [slot.names[0] for place, slot in enumerate(slots) if place not in set(places)]
    if missing:
        raise invalid(f"{label}: the program takes {len(slots)} inputs, but the configuration has none for {missing}")


def _missing(error: KeyError) -> ModserveError:
    return invalid(f"the program needs input {error}, but the request does not have it")


def _runner(module: Any, inputs: Structure, leaves: list[Any]) -> Run:
    constants = {f"\0{place}": leaf.value for place, leaf in enumerate(leaves) if isinstance(leaf, _Constant)}
    names = [f"\0{place}" if isinstance(leaf, _Constant) else leaf for place, leaf in enumerate(leaves)]
    arguments, keywords = inputs.template(iter(names))
    plain = not keywords and not constants and all(isinstance(argument, str) for argument in arguments)

    def run(values: Mapping[str, Any]) -> Any:
        try:
            if plain:
                filled, by_keyword = [values[name] for name in arguments], {}
            else:
                all_values = {**values, **constants}
                filled, by_keyword = fill(arguments, all_values), fill(keywords, all_values)
        except KeyError as error:
            raise _missing(error) from None
        return module(*filled, **by_keyword)

    return run


def _module(program: Any, options: PyTorchOptions, device: Any, label: str) -> Any:
    if device is not None and device.type != "cpu":
        program = move_to_device_pass(program, device)
    module = program.module()
    if options.precision:
        module = module.to(getattr(torch, options.precision))
    return compile_module(module, options, label)


def compile_module(module: Any, options: PyTorchOptions, label: str) -> Any:
    """Apply ``torch.compile`` if the model's parameters ask for it. Raises INVALID_ARG if there is no compiler."""
    if options.compile is None or options.compile.get("disable"):
        return module
    compiler = os.environ.get("CXX", "g++")
    if options.compile.get("backend", "inductor") == "inductor" and shutil.which(compiler) is None:
        raise invalid(
            f"{label}: torch.compile needs a C++ compiler, but '{compiler}' is not installed: install one, or set CXX"
        )
    return torch.compile(module, **options.compile)


def _values(program: Any) -> dict[str, Any]:
    """Return the values behind the names in the program's graph, without data."""
    return {node.name: node.meta.get("val") for node in program.graph.nodes}


def _find_written(program: Any) -> set[str]:
    """Return the names of arguments, weights, buffers and constants that executions of a program may write to."""
    signature = program.graph_signature
    written = {*signature.buffers_to_mutate.values(), *getattr(signature, "user_inputs_to_mutate", {}).values()}
    buffers = {target: name for name, target in signature.inputs_to_buffers.items()}
    written = {buffers.get(name, name) for name in written}
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        schema = getattr(node.target, "_schema", None)
        if schema is None and isinstance(node.target, torch._ops.HigherOrderOperator):
            written |= _memory_of(node.all_input_nodes)  # a graph inside, which may do anything
        elif schema is not None and schema.is_mutable:
            places = [
                place for place, each in enumerate(schema.arguments) if each.alias_info and each.alias_info.is_write
            ]
            targets = [node.args[place] for place in places if place < len(node.args)]
            targets += [node.kwargs[name] for each in schema.arguments if (name := each.name) in node.kwargs]
            written |= _memory_of(each for each in targets if isinstance(each, torch.fx.Node))
    return written


def _memory_of(nodes: Iterable[Any]) -> set[str]:
    """Return the owners of the nodes' memory: arguments, weights, buffers and constants, seen through views."""
    waiting, seen, owners = list(nodes), set(), set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        schema = getattr(node.target, "_schema", None)
        if node.op in ("placeholder", "get_attr"):
            owners.add(node.name)
        elif schema is None or any(each.alias_info is not None for each in schema.returns):
            waiting += node.all_input_nodes
    return owners


def _returns_attributes(module: Any) -> bool:
    """Return True if a program returns weights or constants of its own unchanged."""
    graph = getattr(getattr(module, "_orig_mod", module), "graph", None)
    if graph is None:
        return True
    output = next(node for node in graph.nodes if node.op == "output")
    return any(node.op == "get_attr" for node in output.all_input_nodes)


def _load_failure(label: str, path: FilePath, error: Exception) -> ModserveError:
    if isinstance(error, ModserveError):
        return error
    return invalid(
        f"failed to load {label} from '{path}' with PyTorch {torch.__version__}: "
        f"{one_line(str(error)) or type(error).__name__}; load programs with the version "
        "of PyTorch that exported them"
    )
