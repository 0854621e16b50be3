"""Execution of a compiled model: one infer request, or several concurrent ones on threads of their own.

It works around four limits of OpenVINO 2026.4:

- With one thread, ``infer`` does not report a failed execution and leaves the former outputs. ``start_async`` and
  ``wait`` report it, and take 10 µs more.
- Callbacks are not called for a failed execution, so a thread waits for each execution.
- A request does not keep the memory of its inputs alive.
- After a failed execution, other requests of the same compiled model may compute with its inputs, so the model is
  compiled again.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np

from modserve.core.errors import internal, invalid
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array

from ..api import BatchDone, InstanceHandle, refused
from .graph import Graph
from .library import ov
from .messages import is_about_memory, one_line
from .names import DATATYPES

_SMALL_BYTES = 64 * 1024
"""Largest input that is copied: below this size a copy is faster than lending the memory and releasing it.

1 MB takes 13 µs lent and 90 µs copied (benchmarks/engine_shortcuts.py).
"""
_BITS_32 = np.iinfo(np.int32)


class OpenVinoInstance:
    """An infer request. Implements `api.BackendInstance`.

    Small inputs are copied. Large ones are lent to the request and released after the execution. Outputs are written to
    new memory for each execution, which the server then owns.
    """

    takes_early = True

    def __init__(
        self, current: Callable[[], Any], renew: Callable[[Any], None], graph: Graph, *, narrows: bool
    ) -> None:
        self._current = current
        self._renew = renew
        self.data_dependent = graph.data_dependent
        self._graph = graph
        self._narrowed = graph.narrowed if narrows else frozenset[str]()
        self._open(current())

    def _open(self, compiled: Any) -> None:
        self._compiled = compiled
        self._request = compiled.create_infer_request()
        self._types = [each.element_type for each in compiled.inputs]
        self._dtypes = [DATATYPES[each.get_type_name()].numpy for each in self._types]
        self._outputs = [(each.element_type, _new_shape(each.partial_shape)) for each in compiled.outputs]
        self._held: dict[int, Array] = {}
        """Memory that the request reads, by input index. OpenVINO does not keep it alive."""
        self._own_inputs = [self._request.get_input_tensor(index) for index in range(len(self._types))]
        self._own_outputs = [self._request.get_output_tensor(index) for index in range(len(self._outputs))]

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
        if len(inputs) != len(self._types):  # a missing input would silently reuse the previous request's
            missing = [name for name in self._graph.inputs if name not in inputs]
            raise invalid(f"OpenVINO needs all inputs of the model, but the request lacks {missing}")
        rows = self._rows(inputs)
        compiled = self._current()
        if compiled is not self._compiled:
            self._open(compiled)
        lent: list[int] = []
        tensors: list[Any] = []
        try:
            for name, array in inputs.items():
                index = self._graph.inputs[name].index
                if name in self._narrowed:
                    _check_range(name, array)
                if rows:
                    array = _pad(array, self._graph.fixed_batch)
                if array.nbytes > _SMALL_BYTES and array.flags.c_contiguous:
                    lent.append(index)
                else:
                    array = array.copy()
                self._request.set_input_tensor(index, self._tensor(index, array))
                self._held[index] = array
            tensors += [None if shape is None else ov.Tensor(kind, shape) for kind, shape in self._outputs]
            for index, tensor in enumerate(tensors):
                if tensor is not None:
                    self._request.set_output_tensor(index, tensor)
            if self._graph.has_state:
                self._request.reset_state()
            try:
                self._request.start_async()
                self._request.wait()
            except RuntimeError:
                self._renew(compiled)
                raise
            return {name: self._output(name, tensors, rows) for name in outputs}
        except RuntimeError as error:
            text = one_line(str(error))
            if is_about_memory(text):
                raise internal(f"openvino has not enough memory for this execution: {text}") from error
            raise refused("openvino", text) from None
        finally:
            self._let_go(lent, tensors)

    def close(self) -> None:
        del self._request, self._own_inputs, self._own_outputs, self._compiled

    def _rows(self, inputs: Mapping[str, Array]) -> int:
        """Return the number of valid output rows; 0 for all. Raises INVALID_ARG for an unsupported batch size."""
        batch = self._graph.fixed_batch
        rows = len(next(iter(inputs.values()))) if batch and inputs else batch
        if rows == batch:
            return 0
        if not self._graph.padding:
            raise invalid(
                f"expected a batch of {batch}, the only size with parameter SKIP_OV_DYNAMIC_BATCHSIZE, "
                f"got {rows}; with parameter ENABLE_BATCH_PADDING=YES smaller batches are padded"
            )
        return rows

    def _tensor(self, index: int, array: Array) -> Any:
        kind = self._types[index]
        if array.dtype != self._dtypes[index]:
            raise refused("openvino", f"input {index} is {array.dtype}, expected {self._dtypes[index]}")
        if array.dtype == dtypes.BF16.numpy:
            return ov.Tensor(array.view(np.int16), ov.Shape(array.shape), kind)
        return ov.Tensor(array, ov.Shape(array.shape), kind)

    def _output(self, name: str, tensors: Sequence[Any], rows: int) -> Array:
        port = self._graph.outputs[name]
        tensor = tensors[port.index]
        array: Array = np.array(self._request.get_output_tensor(port.index).data) if tensor is None else tensor.data
        if DATATYPES[port.element_type] is dtypes.BF16:
            array = array.view(dtypes.BF16.numpy)
        return array[:rows] if rows else array

    def _let_go(self, lent: Sequence[int], tensors: Sequence[Any]) -> None:
        """Release large tensors and all client memory."""
        for index in lent:
            self._request.set_input_tensor(index, self._own_inputs[index])
            self._held.pop(index, None)
        for index, tensor in enumerate(tensors):
            if tensor is not None and tensor.byte_size > _SMALL_BYTES:
                self._request.set_output_tensor(index, self._own_outputs[index])


class OpenVinoStreams:
    """Executor with one concurrent execution for each of `instances`. Implements `api.AsyncInstance`."""

    takes_early = True

    def __init__(self, name: str, instances: Sequence[OpenVinoInstance]) -> None:
        self.max_in_flight = len(instances)
        self._jobs: SimpleQueue[tuple[Mapping[str, Array], tuple[str, ...], BatchDone] | None] = SimpleQueue()
        # Daemon threads: a hanging execution must not keep the process from exiting.
        self._threads = [
            threading.Thread(target=self._work, args=(instance,), name=f"{name}-stream-{number}", daemon=True)
            for number, instance in enumerate(instances)
        ]
        for thread in self._threads:
            thread.start()

    def attach(self, handle: InstanceHandle) -> None:
        pass

    def start(self, inputs: Mapping[str, Array], outputs: tuple[str, ...], done: BatchDone) -> None:
        self._jobs.put((inputs, outputs, done))

    def detach(self) -> None:
        pass

    def close(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self, instance: OpenVinoInstance) -> None:
        while (job := self._jobs.get()) is not None:
            inputs, outputs, done = job
            try:
                done(instance.execute(inputs, outputs))
            except BaseException as error:
                done(error)
            del job, inputs, outputs, done  # releases the batch's tensors before the wait for the next one
        instance.close()


def _new_shape(shape: Any) -> Any:
    """Return the shape of a new output buffer, which OpenVINO enlarges for variable dimensions; None if it cannot."""
    if shape.rank.is_dynamic:
        return None
    return ov.Shape([size.get_length() if size.is_static else 0 for size in shape])


def _pad(array: Array, rows: int) -> Array:
    filled = np.zeros((rows, *array.shape[1:]), array.dtype)
    filled[: len(array)] = array
    return filled


def _check_range(name: str, array: Array) -> None:
    if array.size and (array.max() > _BITS_32.max or array.min() < _BITS_32.min):
        raise invalid(
            f"input '{name}' has a number outside of {_BITS_32.min} to {_BITS_32.max}: on the CPU, OpenVINO computes "
            "with only 32 bits of an INT64 or UINT64, so the results would be wrong"
        )
