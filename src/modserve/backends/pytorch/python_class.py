"""A class in ``model.py`` with separate weights, as in Triton with ``runtime: "model.py"`` (src/model.py there).

The file runs in the server's process and must be trusted, like the code of Python models.
"""

import importlib.util
import inspect
import itertools
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from modserve.core.configuration.model_config import ModelConfig, ModelDescription
from modserve.core.errors import ModserveError, invalid

from ..api import ModelSource
from ..tensors import input_datatypes
from .archive import Form, form_of
from .export import compile_module
from .failures import one_line
from .naming import Argument, OnceLog, bind_arguments, fill
from .options import PyTorchOptions
from .program import LoadedProgram

_log = logging.getLogger(__name__)

_NUMBERS = {int: "number", float: "number", bool: "number", str: "string", list[str]: "strings"}
"""Annotations of arguments that are not tensors → argument kind."""
_TEXTS = {str(kind).replace("<class '", "").replace("'>", ""): value for kind, value in _NUMBERS.items()}
_numbers = itertools.count()


class PythonClass:
    form = Form.CLASS
    stateful = True  # assumed, since it cannot be detected

    def __init__(self, source: ModelSource, options: PyTorchOptions, file: Path) -> None:
        self._source = source
        self._options = options
        self._label = f"model '{source.config.name}'"
        self._file = file
        self._weights = file.with_suffix(".pt")
        self._module = _import(self._label, file)
        self._class = _choose_class(self._label, self._module, options.model_class, file)
        self._arguments = _arguments(self._class)
        self._defaults = _defaults(self._class)
        self._note = OnceLog(_log)
        self._first: dict[Any, Any] = {}
        """Module of the first instance on each device. Other instances share its parameters."""

    def describe(self) -> ModelDescription | None:
        if self._source.config.inputs and self._source.config.outputs:
            return None
        raise invalid(
            f"{self._label}: a class does not describe types and shapes, so config.pbtxt must list inputs "
            f"and outputs; its forward takes ({', '.join(argument.name for argument in self._arguments)})"
        )

    def load(self, config: ModelConfig, device: Any, *, fresh: bool) -> LoadedProgram:
        first = self._first.get(device)
        if first is None:
            module = self._first[device] = self._new(device)
        elif fresh:
            module = self._sibling(first, device)
        else:
            module = first
        names = list(input_datatypes(config))
        bound = bind_arguments(self._label, _expand_rest(self._arguments, names), names, self._note)
        has_rest = any(argument.kind == "rest" for argument, _ in bound)
        defaults = self._defaults if has_rest else []
        callable_ = compile_module(module, self._options, self._label)
        parameter = next(module.parameters(), None)
        if device is None and parameter is not None and parameter.device.type != "cpu":
            device = parameter.device

        def run(values: Mapping[str, Any]) -> Any:
            arguments: list[Any] = []
            keywords: dict[str, Any] = {}
            for argument, template in bound:
                try:
                    value = fill(template, values)
                except KeyError as error:
                    if argument.required:
                        raise invalid(f"the model needs input {error}, but the request does not have it") from None
                    continue
                # Arguments before ``*args`` cannot be passed by name, so omitted ones get their default.
                arguments += defaults[len(arguments) : max(0, argument.size)]
                if len(arguments) == argument.size and not keywords:
                    arguments.append(value)
                elif argument.kind == "rest":
                    raise invalid(f"the model needs all inputs before '{template}' ('{argument.name}')")
                else:
                    keywords[argument.name] = value
            return callable_(*arguments, **keywords)

        kinds = {template: argument.kind for argument, template in bound if isinstance(template, str)}
        return LoadedProgram(run, kinds, True, True, device=device)

    def close(self) -> None:
        self._first.clear()
        sys.modules.pop(self._module.__name__, None)

    def _new(self, device: Any) -> Any:
        """Create an object of the class and load its weights."""
        module = self._make_module()
        if self._weights.exists():
            try:
                weights = torch.load(str(self._weights), map_location=device or "cpu", weights_only=True)
                module.load_state_dict(weights)
            except Exception as error:
                raise self._no_weights(error) from error
        elif next(module.parameters(), None) is not None:
            text = "%s: there is no file '%s' with weights; the model runs with its initial weights"
            _log.warning(text, self._label, self._weights)
        if device is not None:
            module = module.to(device)
        if self._options.precision:
            module = module.to(getattr(torch, self._options.precision))
        return module.eval()

    def _sibling(self, first: Any, device: Any) -> Any:
        """Create another object that shares the parameters but has its own buffers."""
        module = self._make_module()
        parameters = {name for name, _ in first.named_parameters(remove_duplicate=False)}
        state = {
            name: value if name in parameters else value.clone()
            for name, value in first.state_dict(keep_vars=True).items()
        }
        module.load_state_dict(state, assign=True)
        # The class creates non-persistent buffers itself, on the CPU and in its own precision.
        for name, buffer in first.named_buffers():
            if name not in state:
                owner, _, attribute = name.rpartition(".")
                setattr(module.get_submodule(owner), attribute, buffer.clone())
        return module.eval()

    def _make_module(self) -> Any:
        try:
            return self._class()
        except Exception as error:
            raise invalid(
                f"{self._label}: {self._class.__name__}() of '{self._file}' failed (it is called without "
                f"arguments): {error}"
            ) from error

    def _no_weights(self, error: Exception) -> ModserveError:
        try:
            form = form_of(self._weights)
        except ModserveError:
            text = one_line(str(error))
        else:
            text = f"it is {form.words}; save weights with torch.save(model.state_dict(), 'model.pt')"
        name = self._class.__name__
        return invalid(f"{self._label}: failed to load weights for {name} from '{self._weights}': {text}")


def _import(label: str, file: Path) -> ModuleType:
    name = f"modserve_pytorch_model_{next(_numbers)}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise invalid(f"{label}: '{file}' is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as in an import: dataclasses and torch.compile need it
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(name, None)
        raise invalid(f"{label}: '{file}' failed: {type(error).__name__}: {error}") from error
    return module


def _choose_class(label: str, module: ModuleType, requested: str, file: Path) -> Any:
    """Return the class to serve: by name, or chosen as in Triton, but never an imported class."""
    classes = {
        name: value
        for name, value in sorted(vars(module).items())
        if isinstance(value, type) and issubclass(value, torch.nn.Module)
    }
    own = {name: value for name, value in classes.items() if value.__module__ == module.__name__}
    if requested:
        if requested not in classes:
            have = ", ".join(own) or "none"
            raise invalid(f"{label}: parameter 'MODEL_CLASS' is '{requested}', but the classes of '{file}' are: {have}")
        return classes[requested]
    if not own:
        raise invalid(f"{label}: '{file}' has no class that derives from torch.nn.Module")
    name, value = next(iter(own.items()))
    if len(own) > 1:
        _log.warning(
            "%s: '%s' has several classes that derive from torch.nn.Module (%s); %s is served, because "
            "its name is the first. Set parameter 'MODEL_CLASS' to choose another",
            label,
            file,
            ", ".join(own),
            name,
        )
    return value


def _defaults(class_: Any) -> list[Any]:
    """Return the defaults of all positional arguments, including arguments without a default."""
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = list(inspect.signature(class_.forward).parameters.values())[1:]
    return [parameter.default for parameter in parameters if parameter.kind in kinds]


def _arguments(class_: Any) -> list[Argument]:
    arguments = []
    for place, parameter in enumerate(list(inspect.signature(class_.forward).parameters.values())[1:]):
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        annotation = parameter.annotation
        text = "" if annotation is parameter.empty else str(annotation)
        kind = _NUMBERS.get(annotation) if isinstance(annotation, type) else None
        kind = kind or _TEXTS.get(text) or ("dict" if text.startswith(("dict[", "typing.Dict[")) else "tensor")
        if parameter.kind is parameter.VAR_POSITIONAL:
            kind = "rest"
        # `size` is the position of an argument that can be passed by position.
        size = -1 if parameter.kind is parameter.KEYWORD_ONLY else place
        required = parameter.default is parameter.empty and kind != "rest"
        arguments.append(Argument(parameter.name, kind, text, required, size))
    return arguments


def _expand_rest(arguments: list[Argument], names: list[str]) -> list[Argument]:
    """Assign the remaining names to ``*args``."""
    before = [argument for argument in arguments if argument.kind != "rest" and argument.size >= 0]
    rest = next((argument for argument in arguments if argument.kind == "rest"), None)
    if rest is None:
        return arguments
    named = [name for name in names if name.startswith(f"{rest.name}[")]
    count = len(named) or max(0, len(names) - (len(arguments) - 1))
    many = [Argument(f"{rest.name}[{index}]", "rest", "", False, len(before) + index) for index in range(count)]
    return [*before, *many, *(argument for argument in arguments if argument.size < 0)]
