"""The vLLM that a model would run on: where it lies, and its engine's arguments, read without importing it."""

import ast
import functools
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import invalid

from ..catalogue import BY_BACKEND
from ..generation.program.loading import LoadingError
from ..generation.program.on_vllm.arguments import engine_arguments
from ..python import options as python_options
from ..python.environment import MODEL_DIRECTORY

_ARGUMENTS = Path("engine", "arg_utils.py")
_CLASSES = frozenset({"EngineArgs", "AsyncEngineArgs"})


def check_installed(config: ModelConfig, options: Mapping[str, str]) -> None:
    """Check for vLLM. Raises INVALID_ARG if the model would run in the server's environment without it."""
    engine = BY_BACKEND["vllm"]
    elsewhere = python_options.ENVIRONMENT_PATH in config.parameters or bool(options)
    if not engine.installed and not elsewhere:
        raise invalid(
            f"model '{config.name}': vLLM is not installed: {engine.install_text}, or name an environment that "
            f"has it with the parameter '{python_options.ENVIRONMENT_PATH}'"
        )


def check_arguments(config: ModelConfig, path: Path, options: Mapping[str, str]) -> None:
    """Check the arguments. Raises INVALID_ARG if ``model.json`` at `path` has one that the installed vLLM lacks.

    The worker checks them for an environment that is an archive, or has no vLLM.
    """
    package = _package(config, path.parent.parent, options)
    names = None if package is None else _argument_names(package)
    if not package or not names:
        return
    try:
        engine_arguments(str(path), dict.fromkeys(names), _version(package), lambda _: None)
    except LoadingError as error:
        raise invalid(f"model '{config.name}': {error}") from None


def _package(config: ModelConfig, model_directory: Path, options: Mapping[str, str]) -> Path | None:
    """Return the folder of the package ``vllm``, if known."""
    environment = config.parameters.get(python_options.ENVIRONMENT_PATH, "").strip()
    if not environment and python_options.PYTHON in options:
        environment = str(Path(options[python_options.PYTHON]).parent.parent)
    if environment:
        folder = Path(environment.replace(MODEL_DIRECTORY, str(model_directory)))
        return next(iter(sorted(folder.glob("lib*/python3*/site-packages/vllm"))), None)
    spec = find_spec("vllm") if BY_BACKEND["vllm"].installed else None
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


@functools.cache
def _argument_names(package: Path) -> frozenset[str]:
    """Return the fields of vLLM's AsyncEngineArgs, a dataclass; empty if its source is not as expected."""
    try:
        tree = ast.parse((package / _ARGUMENTS).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    return frozenset(
        field.target.id
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name in _CLASSES
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    )


def _version(package: Path) -> str:
    """Return the version that pip installed; empty if pip did not."""
    folders = [path for name in ("vllm", "vllm_*") for path in package.parent.glob(f"{name}-*.dist-info")]
    return folders[0].name.removesuffix(".dist-info").rpartition("-")[2] if folders else ""
