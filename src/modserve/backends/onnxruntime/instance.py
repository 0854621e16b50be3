"""An instance of an ONNX model: runs batches in a session that it may share with others."""

from collections.abc import Mapping

import numpy as np
import onnxruntime as ort

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import internal, invalid, unsupported
from modserve.core.runtime import long_buffers
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array

from .. import gpu_failures
from ..api import refused
from ..tensors import input_datatypes, output_datatypes
from .divisions import division_by_zero
from .options import SHRINKAGE, log_severity
from .output_memory import LARGE, output_memory
from .sessions import text_of
from .tensors import decode_texts, to_array, to_bfloat16

_NO_MEMORY = ("Failed to allocate memory", "Available memory of")
"""Messages of its arenas; the latter if ``gpu_mem_limit`` is reached."""


class OnnxRuntimeInstance:
    takes_early = True

    def __init__(
        self, session: ort.InferenceSession, config: ModelConfig, shrink: str = "", *, data_dependent: bool = True
    ) -> None:
        self.data_dependent = data_dependent
        self._session = session
        self._run_options: ort.RunOptions | None = None
        if shrink:
            self._run_options = ort.RunOptions()
            self._run_options.log_severity_level = log_severity(config)
            self._run_options.logid = config.name
            self._run_options.add_run_config_entry(SHRINKAGE, shrink)
        inputs = input_datatypes(config).items()
        self._strings = [name for name, datatype in inputs if datatype is dtypes.BYTES]
        self._bfloat16 = [name for name, datatype in inputs if datatype is dtypes.BF16]
        self._gives_bfloat16 = dtypes.BF16 in output_datatypes(config).values()
        if self._gives_bfloat16 and self._strings:
            raise unsupported(
                f"model '{config.name}': ONNX Runtime's Python interface cannot return BF16 outputs "
                f"of a model with string inputs, such as '{self._strings[0]}'"
            )
        self._memory = None if "cpu:0" in shrink else output_memory(session)
        if self._memory is not None:
            long_buffers.register(self._memory)

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
        feeds: dict[str, Array | ort.OrtValue] = dict(inputs)
        for name in self._strings:
            if name in feeds:
                feeds[name] = decode_texts(name, inputs[name])
        for name in self._bfloat16:
            if name in feeds:
                feeds[name] = to_bfloat16(inputs[name])
        try:
            if self._gives_bfloat16:
                return self._execute_with_values(feeds, outputs)
            results = self._session.run(outputs, feeds, self._run_options)
            if self._memory is not None:
                for each in results:
                    if each.nbytes >= LARGE:
                        self._memory.hold(each)
            return dict(zip(outputs, results, strict=True))
        except Exception as error:  # ONNX Runtime's exceptions share no base class but this
            text = text_of(error)
            if (division := division_by_zero(text)) is not None:
                raise invalid(f"the request makes the graph divide an integer by 0, in node '{division}'") from None
            if type(error).__name__ == "InvalidArgument":  # the inputs do not fit the graph
                raise refused("onnxruntime", text) from None
            if (lost := gpu_failures.find_loss(text)) is not None:
                raise lost from error
            if any(part in text for part in _NO_MEMORY) or gpu_failures.is_full(text):
                raise internal(f"onnxruntime has no memory for the request: {text}") from None
            raise

    def close(self) -> None:
        if self._memory is not None:
            long_buffers.unregister(self._memory)
            self._memory = None  # it refers to the session, too
        del self._session

    def _execute_with_values(
        self, feeds: Mapping[str, Array | ort.OrtValue], outputs: tuple[str, ...]
    ) -> Mapping[str, Array]:
        """Execute with ONNX Runtime's own values, over the same memory, because numpy lacks bfloat16."""
        values = {
            name: ort.OrtValue.ortvalue_from_numpy(feed) if isinstance(feed, np.ndarray) else feed
            for name, feed in feeds.items()
        }
        results = self._session.run_with_ort_values(outputs, values, self._run_options)
        return dict(zip(outputs, map(to_array, results), strict=True))
