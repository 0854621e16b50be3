"""The ``vllm`` backend: models of Triton's backend of that name, on the installed vLLM.

The engine runs in processes that vLLM starts, and is driven from a worker process of the Python backend, not from the
server: vLLM imports torch, turns tokens into text with the interpreter's lock, and changes signal handlers, loggers
and environment variables of the process; its environment may be another one; and when its engine dies, a process that
ends takes all that is left of it along.
"""

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import ModserveError, invalid
from modserve.core.files import tokenizer_files

from ..api import ModelSource
from ..generation.files import context_length
from ..generation.model import OF_CHATS, LanguageModel, Parameters, code_in, lengths
from ..generation.tensors import IMAGES, INPUTS
from ..options import unknown_parameter
from ..python import options as python_options
from ..python.backend import PythonBackend, PythonModel
from . import arguments, installation

_log = logging.getLogger(__name__)

_CONTEXT = "max_model_len"
_KNOWN = ("REPORT_CUSTOM_METRICS", "ENABLE_VLLM_HEALTH_CHECK", *OF_CHATS, *python_options.MODEL_PARAMETERS)


class VllmBackend:
    """Implementation of `backends.api.Backend`."""

    default_model_filename = arguments.FILENAME
    default_cpu_instances = 1
    any_thread = False
    parallel_instances = True
    known_options: Mapping[str, str] = python_options.BACKEND_OPTIONS

    def gpu_count(self) -> int:
        return PythonBackend().gpu_count()

    def code_in(self, config: ModelConfig, path: Path) -> str:
        try:
            trusts = bool(arguments.read(path).get("trust_remote_code"))
        except ModserveError:
            trusts = False
        if trusts:
            return '"trust_remote_code" lets vLLM run programs that lie beside the model\'s weights'
        return code_in(config, path)

    def refusal(self, config: ModelConfig, path: Path, backend_options: Mapping[str, str]) -> ModserveError | None:
        """Return the reason why `open` would refuse the arguments, without vLLM; None if it shows none."""
        try:
            _arguments(config, path, backend_options)
        except ModserveError as error:
            return error
        return None

    def open(self, source: ModelSource) -> LanguageModel:
        config, path = source.config, source.path
        for key in config.parameters:
            if key not in _KNOWN:
                _log.warning("%s", unknown_parameter("vllm", config, key, _KNOWN))
        values = _arguments(config, path, source.options)
        parameters = partial(_parameters, source, values)
        return LanguageModel(source, (*INPUTS, IMAGES), "", "max_num_seqs", parameters)


def _arguments(config: ModelConfig, path: Path, options: Mapping[str, str]) -> Mapping[str, object]:
    """Return the arguments of ``model.json``. Raises INVALID_ARG."""
    values = arguments.read(path)
    installation.check_installed(config, options)
    installation.check_arguments(config, path, options)
    return values


def _parameters(source: ModelSource, values: Mapping[str, object], python: PythonModel) -> Parameters:
    """Return the parameters for chats. vLLM supplies any that are not here, in the process of the first instance."""
    folder = arguments.weights(source.path, values)
    if folder is None:
        config = {"name": source.config.name, "backend": "vllm", "path": str(source.path)}
        completed = python.complete(config) or {}
        return dict(completed["parameters"])
    place = values.get("tokenizer")
    try:
        files = tokenizer_files.read(Path(place) if isinstance(place, str) and Path(place).is_dir() else folder)
    except tokenizer_files.BrokenFileError as error:
        raise invalid(f"model '{source.config.name}': {error} (in '{folder}')") from None
    parameters = {name: text for name, text in files.tokens.items() if name in OF_CHATS}
    if files.template is not None:
        parameters["chat_template"] = files.template
    context = values.get(_CONTEXT)
    length = context if isinstance(context, int) else context_length(folder)
    return parameters | {name: text for name, text in lengths(length).items() if length and name in OF_CHATS}
