"""The ``tensorrt`` backend: an explanation why a TensorRT engine does not load, and the alternative.

A plan is compiled for one kind of GPU by one version of TensorRT, and nothing else can run it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import ModserveError, invalid, unsupported

from .api import ModelSource
from .code import NoCode


class TensorRtBackend(NoCode):
    default_model_filename = "model.plan"
    default_cpu_instances = 1
    any_thread = False

    def gpu_count(self) -> int:
        return 0

    def open(self, source: ModelSource) -> NoReturn:
        """Refuse the model. Raises UNSUPPORTED, or INVALID_ARG if there is no file."""
        name, path = source.config.name, source.path
        if not path.exists():
            raise invalid(f"unable to find model file '{path}' for model '{name}'")
        raise self.refusal(source.config, path, source.options)

    def refusal(self, config: ModelConfig, path: Path, backend_options: Mapping[str, str]) -> ModserveError:
        """Return the error for a plan, with the alternative; `modserve check` reports it without opening anything."""
        return unsupported(
            f"model '{config.name}': '{path}' is a TensorRT engine. It needs the kind of NVIDIA GPU and the version "
            "of TensorRT that it was built with. modserve cannot run TensorRT engines. Serve the ONNX file that the "
            "engine was built from, as '1/model.onnx' with backend: \"onnxruntime\""
        )
