"""The ``openvino_genai`` backend: language models on OpenVINO GenAI, in a worker process of the Python backend."""

import logging
from collections.abc import Mapping
from pathlib import Path

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import invalid

from ..api import ModelSource
from ..generation.files import context_length
from ..generation.model import LanguageModel, code_in, lengths
from ..generation.tensors import INPUTS
from ..python import options as python_options
from . import gguf, options

_log = logging.getLogger(__name__)

_IR = "openvino_model.xml"


class OpenVinoGenaiBackend:
    """Implementation of `backends.api.Backend`."""

    default_model_filename = _IR
    default_cpu_instances = 1
    any_thread = False
    parallel_instances = True
    known_options: Mapping[str, str] = python_options.BACKEND_OPTIONS

    def gpu_count(self) -> int:
        """Return 0, for instance groups: the parameter `device` names the device."""
        return 0

    def code_in(self, config: ModelConfig, path: Path) -> str:
        return code_in(config, path)

    def open(self, source: ModelSource) -> LanguageModel:
        config, path = source.config, source.path
        for warning in options.warnings(config):
            _log.warning("%s", warning)
        if not path.is_file():
            raise invalid(
                f"unable to find '{path}': the folder of a version must have a .gguf file or '{_IR}'. The latter needs "
                "the other files that optimum-cli export openvino writes beside it"
            )
        device = options.read(config, path).device.lower()
        parameters = _parameters(path)
        return LanguageModel(source, INPUTS, device, "max_num_seqs", lambda _: parameters)


def _parameters(path: Path) -> dict[str, str]:
    """Return omissible parameters, from the model's files. Raises INVALID_ARG for a broken GGUF file."""
    if path.suffix != ".gguf":
        length = context_length(path.parent)
        return lengths(length) if length else {}
    header = gguf.read_header(path)
    parameters = dict(gguf.special_tokens(path, header))
    if header.chat_template:
        parameters["chat_template"] = header.chat_template
    if header.context_length:
        parameters |= lengths(header.context_length)
    return parameters
