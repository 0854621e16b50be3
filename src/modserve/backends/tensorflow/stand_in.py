"""SavedModels and frozen graphs on OpenVINO, if TensorFlow is not installed."""

import logging
from dataclasses import replace

from modserve.core.errors import ModserveError, invalid, unsupported

from ..api import BackendModel, ModelSource
from ..catalogue import BY_BACKEND
from ..openvino.backend import OpenVinoBackend
from ..options import MAX_BATCH_SIZE, default_max_batch_size
from .options import (
    BACKEND_OPTIONS,
    INIT_OPS,
    INTRA_THREADS,
    PARAMETERS,
    SIGNATURE,
    TAG,
    find_saved_model,
)

_log = logging.getLogger(__name__)

_ALIKE = (SIGNATURE, TAG)
"""Parameters that the openvino backend has, too."""
_OPENVINO_THREADS = "INFERENCE_NUM_THREADS"
_WHY = "OpenVINO runs it, because TensorFlow is not installed"
_INSTALL = BY_BACKEND["tensorflow"].install


class OpenVinoStandIn:
    def __init__(self) -> None:
        self._openvino = OpenVinoBackend()
        self.default_cpu_instances: int = self._openvino.default_cpu_instances
        self.any_thread: bool = self._openvino.any_thread

    def gpu_count(self) -> int:
        return self._openvino.gpu_count()

    def open(self, source: ModelSource) -> BackendModel:
        """Open a model. Raises UNSUPPORTED if only TensorFlow can run it, INVALID_ARG if OpenVINO cannot read it."""
        config = source.config
        if not source.path.exists():
            raise invalid(f"unable to find model file '{source.path}' for model '{config.name}'")
        for key, value in (
            ("model_operations", config.operation_libraries),
            (INIT_OPS, config.parameters.get(INIT_OPS)),
        ):
            if value:
                raise unsupported(f"model '{config.name}': '{key}' needs TensorFlow: {_INSTALL}")
        path = find_saved_model(source.path) or source.path
        parameters = {key: value for key, value in config.parameters.items() if key not in PARAMETERS or key in _ALIKE}
        for key in config.parameters.keys() & {*PARAMETERS} - {*_ALIKE, INTRA_THREADS}:
            _log.warning("model '%s': parameter '%s' has no effect: %s here", config.name, key, _WHY)
        if threads := config.parameters.get(INTRA_THREADS):
            parameters.setdefault(_OPENVINO_THREADS, threads)
        for key in source.options.keys() & {*BACKEND_OPTIONS} - {MAX_BATCH_SIZE}:
            _log.warning("backend option '%s' of backend 'tensorflow' has no effect: %s here", key, _WHY)
        options = {MAX_BATCH_SIZE: str(default_max_batch_size(source.options))}
        try:
            return self._openvino.open(
                replace(source, config=replace(config, parameters=parameters), path=path, options=options)
            )
        except ModserveError as error:
            text = f"{error.message.rstrip('.')}. {_WHY}; TensorFlow may be able to: {_INSTALL}"
            raise type(error)(error.code, text) from error
