"""Files that people put into a model repository and that are no model as they are: a table of what to do about each."""

from collections.abc import Collection
from typing import NamedTuple

from modserve.backends.catalogue import BY_BACKEND


class ForeignFile(NamedTuple):
    """A kind of file, recognised by its name."""

    what: str
    suffixes: str
    """The ends of its names, separated by spaces."""
    backend: str = ""
    """Backend with an engine for such models, perhaps when they are saved in another way."""
    how: str = ""
    """Steps for this engine; empty if the right name is all that it needs."""
    otherwise: str = ""
    """Other remedies, without this engine."""


EXPORT_TORCH = "export the model to ONNX with torch.onnx.export(model, example_inputs, 'model.onnx')"
SAVE_TORCH = "save the model as TorchScript with torch.jit.trace(model, example_inputs).save('model.pt')"
_SKL2ONNX = "convert a scikit-learn model to ONNX with skl2onnx.to_onnx(model, X[:1], options={'zipmap': False})"
_PYTHON = "load it in a model.py"
_TREES = "convert the model to ONNX with onnxmltools"

KINDS = (
    ForeignFile(
        "a pickled Python object",
        ".pkl .pickle .joblib",
        "sklearn",
        "skops.io.dump(model, 'model.skops') saves a scikit-learn model so that no code runs when it is loaded (a "
        "pickle, called 'model.pkl', loads only where the operator allows it)",
        f"{_SKL2ONNX}; or {_PYTHON}",
    ),
    ForeignFile(
        "a Keras file",
        ".h5 .keras .hdf5",
        "tensorflow",
        "save the model with model.export('model.savedmodel')",
        "convert the model to ONNX with tf2onnx (python -m tf2onnx.convert)",
    ),
    ForeignFile(
        "a TensorFlow graph",
        ".pb .graphdef",
        "tensorflow",
        "saved_model.pb belongs, with the folder 'variables', into a folder 'model.savedmodel'; a frozen graph is "
        "called 'model.graphdef'",
        "convert the model to ONNX with tf2onnx (python -m tf2onnx.convert)",
    ),
    ForeignFile("a TensorFlow SavedModel", ".savedmodel", "tensorflow", "", "convert it to ONNX with tf2onnx"),
    ForeignFile("a TensorFlow Lite file", ".tflite", "openvino", "", "convert it to ONNX with tf2onnx (--tflite)"),
    ForeignFile("an OpenVINO file", ".xml", "openvino", "", "serve the ONNX file that it was converted from"),
    ForeignFile("a PaddlePaddle file", ".pdmodel", "openvino", "", "convert it to ONNX with paddle2onnx"),
    ForeignFile(
        "a TensorRT engine", ".plan .engine .trt", "", "", "serve the ONNX file that the engine was built from"
    ),
    ForeignFile("a PyTorch file", ".pt .pt2", "pytorch", "", EXPORT_TORCH),
    ForeignFile("a PyTorch file", ".pth .ckpt", "pytorch", SAVE_TORCH, EXPORT_TORCH),
    ForeignFile(
        "a file of weights without the model's graph",
        ".safetensors",
        "pytorch",
        f"load the weights into the model, and {SAVE_TORCH}",
        f"{EXPORT_TORCH}; models of Hugging Face: optimum-cli export onnx",
    ),
    ForeignFile("a file of XGBoost", ".ubj .bst", "fil", "XGBoost's files are called 'xgboost.ubj'", _TREES),
    ForeignFile("a file of CatBoost", ".cbm", "", "", "save it with model.save_model('model.onnx', format='onnx')"),
    ForeignFile("a scikit-learn model", ".skops", "sklearn", "", _SKL2ONNX),
    ForeignFile(
        "a file of llama.cpp",
        ".gguf",
        "openvino_genai",
        "",
        "load it in a model.py with llama-cpp-python",
    ),
    ForeignFile(
        "an archive of TorchServe", ".mar", "pytorch", "it is a zip archive: the model is inside", EXPORT_TORCH
    ),
    ForeignFile("a Core ML file", ".mlmodel .mlpackage", "", "", "serve the model that it was converted from"),
)
BY_SUFFIX = {suffix: kind for kind in KINDS for suffix in kind.suffixes.split()}


def advice(file: str, kind: ForeignFile, installed: Collection[str]) -> str:
    """Describe a file, and the ways to serve its model: by its own engine, which may have to be installed first."""
    ways = []
    engine = BY_BACKEND.get(kind.backend)
    if kind.backend in installed:
        ways.append(
            f"{kind.how}, for backend '{kind.backend}'" if kind.how else f"backend '{kind.backend}' runs such files"
        )
    elif engine is not None:
        ways.append(f"{engine.install_text} for backend '{engine.backend}'" + (f", and {kind.how}" if kind.how else ""))
    return f"'{file}' is {kind.what}: " + "; or ".join([*ways, *filter(None, [kind.otherwise])])
