"""What the short cuts on a request's way to an engine gain: each is timed beside what would be there without it.

    python benchmarks/engine_shortcuts.py            # a minute; prints a line for each

Needs the packages openvino and torch for their lines; without one of them, its line is left out.
"""

import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np

from modserve.backends.python.worker import records, wire
from modserve.backends.python.worker.records import Descriptions, OutgoingRecord, Status

WINDOWS = 15


def seconds(call: Callable[[], object], count: int) -> float:
    call()
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def compare(what: str, quick: Callable[[], object], slow: Callable[[], object], count: int) -> None:
    """The two in turns, so that what disturbs the machine disturbs both."""
    pairs = [(seconds(quick, count), seconds(slow, count)) for _ in range(WINDOWS)]
    with_it, without = (statistics.median(column) * 1e6 for column in zip(*pairs, strict=True))
    print(f"{what}: {with_it:.1f} µs with it, {without:.1f} µs without")


def worker_frames() -> None:
    """Frames of one small request between the server and a worker: written and read by what is known of its sort."""
    sort = ((("INPUT0", "FP32", (1, 16)), ("INPUT1", "FP32", (1, 16))), ("OUTPUT0", "OUTPUT1"), ())
    entry = OutgoingRecord(1, Status.OPEN, sort, [bytes(64), bytes(64)])
    writing, reading = Descriptions(), Descriptions()

    def nowhere(elements: object, size: int) -> None:
        return None

    frame = records.write_records(writing, nowhere, wire.MessageKind.EXECUTE, [entry])
    body, inline_at = memoryview(frame)[16:], wire.HEADER.unpack_from(frame)[3]

    def read() -> object:
        return records.read_records(body, 1, inline_at, reading, lambda _: b"")

    def read_anew() -> object:
        reading.shapes.clear()
        return read()

    def write() -> object:
        return records.write_records(writing, nowhere, wire.MessageKind.EXECUTE, [entry])

    def write_anew() -> object:
        return records._write_records(writing, nowhere, wire.MessageKind.EXECUTE, [entry])

    compare("a worker's frame, written", write, write_anew, 5000)
    compare("a worker's frame, read", read, read_anew, 5000)


def openvino_inputs() -> None:
    """An input of 1 MB: lent to the infer request, or copied."""
    from modserve.backends.openvino.library import core, ov

    parameter = ov.opset13.parameter([1, 262144], np.float32)
    model = ov.Model([ov.opset13.relu(parameter)], [parameter], "relu")
    request = core().compile_model(model, "CPU").create_infer_request()
    array, own = np.zeros((1, 262144), np.float32), request.get_input_tensor(0)

    def lend() -> None:
        request.set_input_tensor(0, ov.Tensor(array, ov.Shape(array.shape), ov.Type.f32))
        request.set_input_tensor(0, own)

    def copy() -> None:
        request.set_input_tensor(0, ov.Tensor(array.copy(), ov.Shape(array.shape), ov.Type.f32))

    compare("an input of 1 MB for OpenVINO", lend, copy, 500)


def pytorch_outputs() -> None:
    """An output of 1 MB that nobody else holds: handed over, or copied."""
    import torch

    from modserve.backends.pytorch.arrays import to_array
    from modserve.core.tensors import dtypes

    torch.set_num_threads(1)
    source = torch.zeros(262144)

    def make(copies: bool) -> Callable[[], object]:
        return lambda: to_array(source + 1, dtypes.FP32, copies=copies, casts=False)

    compare("an output of 1 MB of PyTorch, with the addition that makes it", make(False), make(True), 500)


if __name__ == "__main__":
    worker_frames()
    if find_spec("openvino"):
        openvino_inputs()
    if find_spec("torch"):
        pytorch_outputs()
