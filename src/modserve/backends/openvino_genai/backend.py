"""The ``openvino_genai`` backend: language models on OpenVINO GenAI, in a worker process of the Python backend.

The model is `program`, a decoupled model.py, so what docs/python-models.md says of processes, limits and the revival of
lost ones holds for it. It has a process of its own since a step of the engine keeps the interpreter's lock. Inputs and
outputs are those of Triton's backend for vLLM.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from modserve.core.configuration.model_config import DescribedTensor, ModelConfig, ModelDescription
from modserve.core.errors import invalid
from modserve.core.tensors import dtypes

from ..api import Executor, InstanceSpec, ModelSource
from ..catalogue import BY_BACKEND
from ..python import options as python_options
from ..python.backend import PythonBackend, PythonModel
from . import gguf, options

_log = logging.getLogger(__name__)

_PROGRAM = Path(__file__).parent / "program" / "model.py"
_IR = "openvino_model.xml"
_CONFIG = "config.json"
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len")

INPUTS = (
    DescribedTensor("text_input", dtypes.BYTES, (1,)),
    DescribedTensor("stream", dtypes.BOOL, (1,), True),
    DescribedTensor("sampling_parameters", dtypes.BYTES, (1,), True),
    DescribedTensor("exclude_input_in_output", dtypes.BOOL, (1,), True),
    *(
        DescribedTensor(f"return_{name}", dtypes.BOOL, (1,), True)
        for name in (
            "finish_reason",
            "cumulative_logprob",
            "logprobs",
            "num_input_tokens",
            "num_output_tokens",
            "token_ids",
        )
    ),
)
OUTPUTS = (
    DescribedTensor("text_output", dtypes.BYTES, (-1,)),
    DescribedTensor("finish_reason", dtypes.BYTES, (-1,)),
    DescribedTensor("cumulative_logprob", dtypes.FP32, (-1,)),
    DescribedTensor("logprobs", dtypes.BYTES, (-1,)),
    DescribedTensor("num_input_tokens", dtypes.UINT32, (1,)),
    DescribedTensor("num_output_tokens", dtypes.UINT32, (-1,)),
    DescribedTensor("token_ids", dtypes.BYTES, (-1,)),
)


class OpenVinoGenaiBackend:
    """Implements `backends.api.Backend`."""

    default_model_filename = _IR
    default_cpu_instances = 1
    any_thread = False
    parallel_instances = True
    known_options: Mapping[str, str] = python_options.BACKEND_OPTIONS

    def gpu_count(self) -> int:
        """None for instance groups: the parameter `device` names the device."""
        return 0

    def code_in(self, config: ModelConfig, path: Path) -> str:
        place = config.parameters.get(python_options.ENVIRONMENT_PATH, "")
        return PythonBackend().code_in(config, path) if place else ""

    def open(self, source: ModelSource) -> "OpenVinoGenaiModel":
        for warning in options.warnings(source.config):
            _log.warning("%s", warning)
        return OpenVinoGenaiModel(source)


class OpenVinoGenaiModel:
    """Implements `backends.api.BackendModel`."""

    def __init__(self, source: ModelSource) -> None:
        config, path = source.config, source.path
        if not path.is_file():
            raise invalid(
                f"unable to find '{path}': the folder of a version has a .gguf file, or '{_IR}' with the files that "
                "optimum-cli export openvino writes beside it"
            )
        if config.max_batch_size:
            raise invalid(
                f"model '{config.name}': max_batch_size is {config.max_batch_size}, but the engine of backend "
                "'openvino_genai' forms batches itself: leave max_batch_size out, and limit them by 'max_num_seqs'"
            )
        self._source = source
        self._options = options.read(config, path)
        self._parameters = _parameters(path)
        self._python = PythonModel(replace(source, path=_PROGRAM, auto_complete=False))

    def describe(self) -> ModelDescription | None:
        return ModelDescription(
            INPUTS,
            OUTPUTS,
            batch_dimension=False,
            decoupled=True,
            dynamic_batching=False,
            adds_tensors=True,
            parameters=self._parameters,
        )

    def instance(self, spec: InstanceSpec) -> Executor:
        if not spec.config.decoupled:
            raise invalid(
                f"model '{spec.config.name}': backend 'openvino_genai' answers with any number of responses; write "
                "model_transaction_policy { decoupled: true }"
            )
        return self._python.instance(spec)

    def report(self) -> Mapping[str, object]:
        return {
            "engine": "OpenVINO GenAI",
            "version": BY_BACKEND["openvino_genai"].version,
            "precision": "",
            "device": self._options.device.lower(),
            "threads": self._source.cpu_threads,
        }

    def close(self) -> None:
        self._python.close()


def _parameters(path: Path) -> dict[str, str]:
    """What the model's files say that a configuration may leave out. Raises INVALID_ARG for a broken GGUF file."""
    if path.suffix != ".gguf":
        length = _context_length(path.parent / _CONFIG)
        return _lengths(length) if length else {}
    header = gguf.read_header(path)
    parameters = dict(gguf.special_tokens(path, header))
    if header.chat_template:
        parameters["chat_template"] = header.chat_template
    if header.context_length:
        parameters |= _lengths(header.context_length)
    return parameters


def _lengths(context: int) -> dict[str, str]:
    """A chat goes on to the end of the context, unless a request says otherwise."""
    return {options.CONTEXT: str(context), options.CHAT_LENGTH: str(context)}


def _context_length(path: Path) -> int:
    """0 where the file does not say."""
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return 0
    for place in (config, config.get("text_config")) if isinstance(config, dict) else ():
        for key in _CONTEXT_KEYS:
            if isinstance(place, dict) and isinstance(place.get(key), int) and place[key] > 0:
                return int(place[key])
    return 0
