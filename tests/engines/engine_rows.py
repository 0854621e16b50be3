"""Real networks, the forms that their packages bring them in, and the engines that run each: the table of agreement."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from model_packages import FOLDER, unpacked
from numpy.typing import NDArray
from served_examples import load, prepared

from modserve.backends.catalogue import BY_BACKEND, is_installed

Arrays = Mapping[str, NDArray[Any]]
_NOTHING: Mapping[str, str] = MappingProxyType({})


class Network(NamedTuple):
    """What goes in, with a batch dimension, and the shapes of what comes out without it, by the names in ONNX.

    Every dimension that is -1 here is so in the network; `inputs` says which ones of its own are.
    """

    arrays: Callable[[], Arrays]
    inputs: Mapping[str, tuple[int, ...]]
    outputs: Mapping[str, tuple[int, ...]]


class Form(NamedTuple):
    """A file or a folder, how a model's version calls it, and the names of its tensors where ONNX has others.

    `needs` are the modules with which it is made, and its network's inputs.
    """

    path: Callable[[], Path]
    filename: str
    names: Mapping[str, str] = _NOTHING
    needs: tuple[str, ...] = ()


class Row(NamedTuple):
    """A form on some engine.

    `tolerance` is the largest difference to the reference, as a share of its largest value; of precisions below fp32
    the differences' root mean square, as a share of the reference's.
    """

    network: str
    form: str
    engine: str
    precision: str = "fp32"
    tolerance: float = 1e-4
    parameters: Mapping[str, str] = _NOTHING

    @property
    def model(self) -> str:
        return f"{self.form}_{self.engine}_{self.precision}"

    @property
    def can_run(self) -> bool:
        """Whether what it needs is installed. OpenVINO runs SavedModels in place of TensorFlow."""
        engines = [self.engine, "openvino"] if self.engine == "tensorflow" else [self.engine]
        return any(BY_BACKEND[engine].installed for engine in engines) and all(
            is_installed(module) for module in FORMS[self.form].needs
        )

    def config(self) -> str:
        """Of at most four rows in a batch; what the network has is written out, since not every engine fills it in."""
        network, form = NETWORKS[self.network], FORMS[self.form]
        lines = [f'backend: "{self.engine}"', f'default_model_filename: "{form.filename}"', "max_batch_size: 4"]
        datatypes = {name: array.dtype for name, array in network.arrays().items()}
        for side, tensors in (("input", network.inputs), ("output", network.outputs)):
            for name, dims in tensors.items():
                datatype = _DATATYPES[str(datatypes.get(name, "float32"))]
                shape = ", ".join(map(str, dims))
                name = form.names.get(name, name)
                lines.append(f'{side} {{ name: "{name}" data_type: {datatype} dims: [ {shape} ] }}')
        for key, value in self.parameters.items():
            lines.append(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}')
        return "\n".join([*lines, "instance_group { kind: KIND_CPU count: 1 }"])


_DATATYPES = {"float32": "TYPE_FP32", "int64": "TYPE_INT64", "int32": "TYPE_INT32"}


def _chords() -> Arrays:
    """Two seconds of two chords, each with overtones that fade: FP32 [2, 43844, 1] at 22,050 Hz."""
    time = np.arange(43844) / 22050
    chords = [
        sum(np.sin(2 * np.pi * pitch * overtone * time) / overtone**1.5 for pitch in chord for overtone in range(1, 7))
        for chord in ((220.0, 277.2, 329.6), (196.0, 246.9, 293.7, 392.0))
    ]
    sound = np.array(chords) * 0.15 * np.exp(-(time % 0.5) * 4)
    return {"serving_default_input_2:0": sound[:, :, None].astype(np.float32)}


def _texts() -> Arrays:
    """Two texts, the shorter one padded."""
    source = np.random.default_rng(0)
    ids, mask = source.integers(1000, 25000, (2, 24)), np.ones((2, 24), np.int64)
    ids[:, 0] = 101
    ids[0, 23] = ids[1, 15] = 102
    ids[1, 16:] = mask[1, 16:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def _line() -> NDArray[np.uint8]:
    """A line of black text on white: UINT8 [48, 320]."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("L", (320, 48), "white")
    ImageDraw.Draw(image).text((8, 6), "Every engine reads this", "black", ImageFont.load_default(26))
    return np.asarray(image)


def _strip(width: int) -> Arrays:
    """The line, and the line upside down, as PP-OCR's networks have it."""
    line = _line()[:, :width].astype(np.float32) / 127.5 - 1
    return {"image": np.repeat(np.stack([line, line[::-1, ::-1]])[:, None], 3, axis=1).copy()}


def _page() -> Arrays:
    page = np.full((160, 320), 255, np.uint8)
    page[16:64], page[96:144] = _line(), _line()
    return {"image": np.repeat((page.astype(np.float32) / 127.5 - 1)[None, None], 3, axis=1).copy()}


def _files() -> Arrays:
    """The first and last bytes of two files, as Magika takes them."""
    rows = np.full((2, 2048), 256, np.int32)
    for row, content in zip(rows, (Path(__file__).read_bytes(), b"a,b,c\n1,2,3\n" * 60), strict=True):
        row[: len(content[:1024])] = list(content[:1024])
        row[2048 - len(content[-1024:]) :] = list(content[-1024:])
    return {"bytes": rows}


NETWORKS: Mapping[str, Network] = {
    "basic_pitch": Network(
        _chords,
        {"serving_default_input_2:0": (43844, 1)},
        {
            "StatefulPartitionedCall:0": (172, 264),
            "StatefulPartitionedCall:1": (172, 88),
            "StatefulPartitionedCall:2": (172, 88),
        },
    ),
    "minilm": Network(_texts, {"input_ids": (-1,), "attention_mask": (-1,)}, {"token_embeddings": (-1, 384)}),
    "detector": Network(_page, {"image": (3, -1, -1)}, {"text_map": (1, -1, -1)}),
    "orientation": Network(lambda: _strip(192), {"image": (3, 48, 192)}, {"probabilities": (2,)}),
    "recogniser": Network(lambda: _strip(320), {"image": (3, 48, -1)}, {"probabilities": (-1, 6625)}),
    "magika": Network(_files, {"bytes": (2048,)}, {"target_label": (214,)}),
}


def _pitch(file: str) -> Callable[[], Path]:
    return lambda: unpacked("basic-pitch==0.4.0") / "basic_pitch" / "saved_models" / "icassp_2022" / file


def _example(name: str, model: str) -> Callable[[], Path]:
    return lambda: prepared(name) / "model_repository" / model / "1" / "model.onnx"


def _torchscript_minilm() -> Path:
    """The encoder of the example once more, written by PyTorch with the published weights."""
    path = FOLDER / "minilm.pt"
    if not path.exists():
        import torch_minilm

        prepare = load(prepared("text_embeddings") / "prepare.py")
        (content,) = prepare.package_files(prepare.PACKAGE, f"{prepare.FOLDER}/model.safetensors")
        part = path.with_suffix(".part")
        torch_minilm.write(part, prepare.read_safetensors(content))
        part.replace(path)
    return path


_SIGNATURE = {
    "serving_default_input_2:0": "input_2",
    "StatefulPartitionedCall:0": "contour",
    "StatefulPartitionedCall:1": "note",
    "StatefulPartitionedCall:2": "onset",
}
FORMS: Mapping[str, Form] = {
    "pitch_onnx": Form(_pitch("nmp.onnx"), "model.onnx"),
    "pitch_tflite": Form(_pitch("nmp.tflite"), "model.tflite"),
    "pitch_savedmodel": Form(_pitch("nmp"), "model.savedmodel", _SIGNATURE),
    "minilm_onnx": Form(_example("text_embeddings", "encoder"), "model.onnx", needs=("onnx",)),
    "minilm_torchscript": Form(_torchscript_minilm, "model.pt", {"token_embeddings": "OUTPUT__0"}, ("onnx", "torch")),
    "detector": Form(_example("bls_pipeline", "detector"), "model.onnx", needs=("onnx", "PIL")),
    "orientation": Form(_example("bls_pipeline", "orientation"), "model.onnx", needs=("onnx", "PIL")),
    "recogniser": Form(_example("bls_pipeline", "recogniser"), "model.onnx", needs=("onnx", "PIL")),
    "magika": Form(
        lambda: unpacked("magika==1.0.3") / "magika" / "models" / "standard_v3_3" / "model.onnx", "model.onnx"
    ),
}

_BF16 = {"INFERENCE_PRECISION_HINT": "bf16"}
ROWS = (
    # The first of each network is what the others are compared with.
    Row("basic_pitch", "pitch_onnx", "onnxruntime"),
    Row("basic_pitch", "pitch_onnx", "openvino"),
    Row("basic_pitch", "pitch_onnx", "openvino", "bf16", 0.25, _BF16),
    Row("basic_pitch", "pitch_tflite", "openvino"),
    Row("basic_pitch", "pitch_savedmodel", "openvino"),
    Row("basic_pitch", "pitch_savedmodel", "tensorflow"),
    Row("minilm", "minilm_onnx", "onnxruntime"),
    Row("minilm", "minilm_onnx", "openvino"),
    Row("minilm", "minilm_onnx", "openvino", "bf16", 0.02, _BF16),
    Row("minilm", "minilm_torchscript", "pytorch"),
    Row("detector", "detector", "onnxruntime"),
    Row("detector", "detector", "openvino", tolerance=1e-3),
    Row("orientation", "orientation", "onnxruntime"),
    Row("orientation", "orientation", "openvino"),
    Row("recogniser", "recogniser", "onnxruntime"),
    Row("recogniser", "recogniser", "openvino", tolerance=1e-3),
    Row("magika", "magika", "onnxruntime"),
    Row("magika", "magika", "openvino", tolerance=2e-3),
)
REFERENCES: Mapping[str, Row] = {row.network: row for row in reversed(ROWS)}
