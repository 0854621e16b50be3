"""One engine in a bare loop, in a process of its own: what engines.py compares the server with.

    python benchmarks/engine_loop.py onnxruntime fp32 model.onnx --callers 1 --batch 16 --sequence 128

For each line of standard input, a number of seconds, it runs the engine for that long and prints sequences per second.
"""

import argparse
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from modserve.execution.placement import available_cores

Ids: TypeAlias = NDArray[np.int64]
Run: TypeAlias = Callable[[Ids, Ids], object]
Loop: TypeAlias = Callable[[float], float]
"""Takes seconds, returns sequences per second."""


def onnxruntime(model: Path, precision: str, callers: int, threads: int) -> Run:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = callers * (max(1, threads // callers) - 1) + 1
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return lambda ids, mask: session.run(None, {"input_ids": ids, "attention_mask": mask})


def pytorch(model: Path, precision: str, callers: int, threads: int) -> Run:
    import torch

    module = torch.jit.load(str(model)).eval()
    if precision == "bf16":
        module = module.to(torch.bfloat16)  # as the backend's PRECISION does
    share = max(1, threads // callers)

    def run(ids: Ids, mask: Ids) -> object:
        if torch.get_num_threads() != share:
            torch.set_num_threads(share)
        with torch.inference_mode():
            return module(torch.from_numpy(ids), torch.from_numpy(mask))

    return run


def openvino(model: Path, precision: str, callers: int, threads: int) -> Run:
    import openvino as ov

    properties = {
        "INFERENCE_PRECISION_HINT": "f32" if precision == "fp32" else precision,
        "NUM_STREAMS": str(callers),
        "INFERENCE_NUM_THREADS": str(threads),
    }
    compiled = ov.Core().compile_model(str(model), "CPU", properties)
    local = threading.local()

    def run(ids: Ids, mask: Ids) -> object:
        if not hasattr(local, "request"):
            local.request = compiled.create_infer_request()
        return local.request.infer({"input_ids": ids, "attention_mask": mask}, share_inputs=True, share_outputs=True)

    return run


ENGINES: dict[str, Callable[[Path, str, int, int], Run]] = {
    "onnxruntime": onnxruntime,
    "pytorch": pytorch,
    "openvino": openvino,
}


def loop_of(run: Run, callers: int, batch: int, sequence: int) -> Loop:
    """A loop of so many callers, each on a thread of its own."""
    ids, mask = np.ones((batch, sequence), np.int64), np.ones((batch, sequence), np.int64)

    def loop(seconds: float) -> float:
        counts = [0] * callers
        began = time.perf_counter()

        def call(index: int) -> None:
            while time.perf_counter() < began + seconds:
                run(ids, mask)
                counts[index] += batch

        threads = [threading.Thread(target=call, args=(index,)) for index in range(callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts) / (time.perf_counter() - began)

    return loop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("precision", choices=["fp32", "bf16"])
    parser.add_argument("model", type=Path)
    parser.add_argument("--callers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=available_cores(), help="of the engine, for all callers")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--sequence", type=int, default=128)
    options = parser.parse_args()
    run = ENGINES[options.engine](options.model, options.precision, options.callers, options.threads)
    loop = loop_of(run, options.callers, options.batch, options.sequence)
    for line in sys.stdin:
        print(loop(float(line)), flush=True)


if __name__ == "__main__":
    main()
