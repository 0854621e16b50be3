"""What to do about a model that does not load: the part of an error behind Triton's text, for people.

Everything here only looks at what lies in a directory and returns text; an empty one where there is nothing to say.
"""

import difflib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from modserve.config import FORMATS
from modserve.core.version import parse_directory

CONFIG_FILE = "config.pbtxt"
_MISSPELT_CONFIGS = ("config.pbtext", "config.pbtx", "config.pb", "config.prototxt", "config.txt", "config.pbtxt.txt")
_MOST_NAMES = 10
_MOST_BELOW = 5
_LIKELY = 0.75
_HEAD_BYTES = 256


class _Kind(NamedTuple):
    """A kind of file that is no model for the engines here."""

    what: str
    advice: str
    suffixes: str
    """The ends of its names, separated by spaces."""


_EXPORT_TORCH = "export the model to ONNX with torch.onnx.export(model, example_inputs, 'model.onnx')"
_SKLEARN = _Kind(
    "a pickled Python object",
    "convert a scikit-learn model to ONNX with skl2onnx.to_onnx(model, X[:1], options={'zipmap': False})",
    ".pkl .pickle .joblib",
)
_TENSORFLOW = _Kind(
    "a TensorFlow or Keras file",
    "convert the model to ONNX with tf2onnx (python -m tf2onnx.convert)",
    ".h5 .keras .pb .graphdef .savedmodel .tflite",
)
_TENSORRT = _Kind("a TensorRT engine", "serve the ONNX file that the engine was built from", ".plan .engine .trt")
_KINDS = (
    _SKLEARN,
    _TENSORFLOW,
    _TENSORRT,
    _Kind("a PyTorch file", _EXPORT_TORCH, ".pt .pth .pt2 .ckpt"),
    _Kind(
        "a file of weights without the model's graph",
        f"load the weights into the model, and {_EXPORT_TORCH}; models of Hugging Face: optimum-cli export onnx",
        ".safetensors",
    ),
    _Kind("a file of XGBoost, LightGBM or CatBoost", "convert the model to ONNX with onnxmltools", ".ubj .bst .cbm"),
    _Kind("an OpenVINO file", "serve the ONNX file that it was converted from", ".xml"),
    _Kind("a file of llama.cpp", "this version of modserve does not run it", ".gguf"),
)
_KIND_OF_SUFFIX = {suffix: kind for kind in _KINDS for suffix in kind.suffixes.split()}

_PICKLE = f"it is a pickle: {_EXPORT_TORCH}, or {_SKLEARN.advice}"
_WEB_PAGE = "it is a web page, not what the download should have been"
_CONTENTS: tuple[tuple[bytes, str], ...] = (
    (
        b"version https://git-lfs",
        "it is the pointer of Git LFS to a file that was not fetched: run 'git lfs pull' where the files come from",
    ),
    (b"PK\x03\x04", f"it is a zip archive, as torch.save makes: {_EXPORT_TORCH}"),
    (b"\x80\x02", f"it is a pickle, as torch.save and joblib make: {_EXPORT_TORCH}, or {_SKLEARN.advice}"),
    (b"\x80\x03", _PICKLE),
    (b"\x80\x04", _PICKLE),
    (b"\x80\x05", _PICKLE),
    (b"\x89HDF", f"it is an HDF5 file: {_TENSORFLOW.advice}"),
    (b"<!DOCTYPE", _WEB_PAGE),
    (b"<html", _WEB_PAGE),
    (b"\x1f\x8b", "it is compressed by gzip: unpack it"),
)
"""How files begin that are often found in the place of a model."""

_SYNONYMS: Mapping[str, str] = {
    **dict.fromkeys(("onnx", "ort", "onnxrt", "onnxruntimeonnx"), "onnxruntime"),
    "dummy": "identity",
}
"""Other names of backends → ours. The keys are folded."""

_NO_TORCH = f'PyTorch models do not run here: {_EXPORT_TORCH}, and use backend: "onnxruntime"'
_NO_TENSORRT = f'TensorRT engines do not run here: {_TENSORRT.advice}, with backend: "onnxruntime"'
_NO_TENSORFLOW = f'TensorFlow models do not run here: {_TENSORFLOW.advice}, and use backend: "onnxruntime"'
_NO_TREES = 'its models do not run here: convert them to ONNX with skl2onnx or onnxmltools, for backend: "onnxruntime"'
_REASONS: Mapping[str, str] = {
    "pytorch torch torchscript libtorch pytorchlibtorch torchaoti": _NO_TORCH,
    "tensorrt trt tensorrtplan": _NO_TENSORRT,
    "tensorflow tf tensorflowsavedmodel tensorflowgraphdef keras": _NO_TENSORFLOW,
    "openvino": 'OpenVINO files do not run here: serve the ONNX file, with backend: "onnxruntime"',
    "sklearn xgboost lightgbm fil": _NO_TREES,
    "dali": "DALI pipelines do not run here",
    "vllm tensorrtllm llm": "engines for language models are not among those of this version",
    "ensemble": 'an ensemble has no backend: write platform: "ensemble", and ensemble_scheduling',
}
_NOT_SUPPORTED = {name: reason for names, reason in _REASONS.items() for name in names.split()}
"""Why a backend of Triton's, or of another server's, is not there, and what to do. The keys are folded."""

_GLOBAL_OPTIONS: Mapping[str, str] = {
    "auto-complete-config": "use --disable-auto-complete-config",
    "min-compute-capability": "every GPU that the engine can use is used",
    "backend-directory": "backends are Python packages, found by their entry points",
    "additional-dependency-dirs": "it is about libraries on Windows",
}
"""Triton's options for all backends that have no effect here, and why."""


def backend_name(name: str, installed: Collection[str]) -> str:
    """What to say of a backend that is not there. Names only what is."""
    folded = _fold(name)
    meant = _SYNONYMS.get(folded)
    if meant is None:
        by_folded = {_fold(each): each for each in installed}
        near = [folded] if folded in by_folded else []
        if folded not in _NOT_SUPPORTED:
            near = near or difflib.get_close_matches(folded, by_folded, n=1, cutoff=_LIKELY)
        meant = by_folded[near[0]] if near else None
    if meant in installed:
        return f"did you mean '{meant}'?"
    return _NOT_SUPPORTED.get(folded, "")


def absent_backends(configured: Iterable[str], installed: Collection[str]) -> list[str]:
    """Warnings for backends that have options on the command line, and are not there."""
    warnings = []
    for name in configured:
        if name and name not in installed:
            hint = backend_name(name, installed)
            warnings.append(
                f"--backend-config={name},… has no effect: there is no backend '{name}' here, installed backends are: "
                f"{', '.join(installed)}" + (f"; {hint}" if hint else "")
            )
    return warnings


def unknown_options(backend: str, options: Iterable[str], known: Mapping[str, str]) -> list[str]:
    """Warnings for options of a backend on which nothing acts. `known`: option → why it has no effect, or nothing."""
    warnings = []
    for key in options:
        why = known.get(key) if key in known else _GLOBAL_OPTIONS.get(key)
        if why == "":
            continue
        if why is None:
            near = difflib.get_close_matches(key, [each for each, reason in known.items() if not reason], n=1)
            why = f"backend '{backend}' does not know it" + (f"; did you mean '{near[0]}'?" if near else "")
        warnings.append(f"backend option '{key}' of backend '{backend}' has no effect: {why}")
    return warnings


def _fold(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "").replace(" ", "")


def layout(directory: Path, installed: Collection[str]) -> str:
    """What lies in a model's directory, what the backends would take, and what to do."""
    lines = [contents(directory), *_mistakes(directory, installed), _takes(installed)]
    return "\n".join(line for line in lines if line)


def versions(directory: Path, present: Sequence[int], installed: Collection[str]) -> str:
    """What to say where the version policy selects none of the versions that are there."""
    if present:
        return f"the versions that are there: {', '.join(map(str, present))}"
    return "\n".join([contents(directory), *_mistakes(directory, installed)])


def model_file(directory: Path, version: int, path: Path, installed: Collection[str]) -> str:
    """What to say where a version has no model file, or one that the engine does not take."""
    try:
        if path.is_file():
            return _content(path)
        if path.exists():
            return ""
    except OSError:
        return ""
    folder = directory / str(version)
    below = _listed(folder)
    if not below:
        return f"'{folder}' is empty"
    lines = [f"'{folder}' holds: {_some(below, _MOST_NAMES)}"]
    same = [name for name in below if Path(name).suffix == path.suffix and path.suffix]
    if len(same) == 1:
        lines.append(_rename(f"{version}/{same[0]}", f"{version}/{path.name}"))
    else:
        lines += _foreign([f"{version}/{name}" for name in below], installed)
    return "\n".join(lines)


def misspelt_config(directory: Path) -> str:
    """A warning for a file that is probably meant to be the configuration, where there is none."""
    names = _listed(directory)
    if CONFIG_FILE in names:
        return ""
    near = [name for name in names if name.lower() in (*_MISSPELT_CONFIGS, CONFIG_FILE)]
    return f"'{directory / near[0]}' is not read: a model's configuration is called '{CONFIG_FILE}'" if near else ""


def contents(directory: Path) -> str:
    """What lies in a directory and in those below it."""
    names = _listed(directory)
    if not names:
        return f"'{directory}' is empty"
    shown = [
        f"{name}/ ({_some(_listed(directory / name), _MOST_BELOW) or 'empty'})" if (directory / name).is_dir() else name
        for name in names
    ]
    return f"'{directory}' holds: {_some(shown, _MOST_NAMES)}"


def _mistakes(directory: Path, installed: Collection[str]) -> Iterator[str]:
    names = _listed(directory)
    if parse_directory(directory.name) is not None and any(not (directory / name).is_dir() for name in names):
        yield (
            f"'{directory.parent}' seems to be the folder of one model: --model-repository takes the folder that the "
            f"folders of models are in, '{directory.parent.parent}'"
        )
        return
    suffixes = {
        Path(row.filename).suffix: row.filename for row in FORMATS if row.by_suffix and row.backend in installed
    }
    has_version = any(parse_directory(name) is not None for name in names if (directory / name).is_dir())
    for name in names:
        path = directory / name
        if path.is_dir() and not has_version and _digits(name):
            yield f"folder '{name}' is no version: versions are called by whole numbers, such as '{_digits(name)}'"
        elif not path.is_dir() and path.suffix in suffixes:
            yield f"move '{name}' to '1/{suffixes[path.suffix]}': model files lie in the folder of their version"
    for name in names:
        if parse_directory(name) is not None:
            below = _listed(directory / name)
            for file in below:
                filename = suffixes.get(Path(file).suffix, "")
                if filename and filename not in below:
                    yield _rename(f"{name}/{file}", f"{name}/{filename}")
                    break
    files = [*names, *(f"{name}/{file}" for name in names for file in _listed(directory / name))]
    yield from _foreign(files, installed)
    if misspelt := misspelt_config(directory):
        yield misspelt


def _foreign(files: Iterable[str], installed: Collection[str]) -> list[str]:
    """A line for each kind of file that no engine here takes."""
    lines: dict[_Kind, str] = {}
    served = {Path(row.filename).suffix for row in FORMATS if row.by_suffix and row.backend in installed}
    for file in files:
        suffix = Path(file).suffix.lower()
        kind = _KIND_OF_SUFFIX.get(suffix)
        if kind is not None and suffix not in served:
            lines.setdefault(kind, f"'{file}' is {kind.what}: {kind.advice}")
    return list(lines.values())


def _takes(installed: Collection[str]) -> str:
    files = [f"'{row.backend}' takes <version>/{row.filename}" for row in FORMATS if row.backend in installed]
    by_name = sorted(set(installed) - {row.backend for row in FORMATS})
    if by_name:
        files.append(f'{", ".join(map(repr, by_name))}: by name, as backend: "{by_name[0]}" in {CONFIG_FILE}')
    return f"installed backends: {'; '.join(files)}"


def _rename(file: str, name: str) -> str:
    return (
        f"rename '{file}' to '{name}', or write default_model_filename: \"{os.path.basename(file)}\" into {CONFIG_FILE}"
    )


def _content(path: Path) -> str:
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        size = path.stat().st_size
    except OSError:
        return ""
    if not size:
        return f"'{path}' is empty"
    for beginning, what in _CONTENTS:
        if head.lower().startswith(beginning.lower()):
            return f"'{path}' is no model: {what}"
    return ""


def _digits(name: str) -> str:
    """The version that a folder is likely to be meant for, called `v1` or `01`; empty if it is called otherwise."""
    digits = name.lower().removeprefix("version").removeprefix("v").strip("_-. ").lstrip("0")
    return digits if parse_directory(digits) is not None else ""


def _listed(directory: Path) -> list[str]:
    """In order; empty for what is no directory."""
    try:
        return sorted(name for name in os.listdir(directory) if not name.startswith("."))
    except OSError:
        return []


def _some(names: Sequence[str], most: int) -> str:
    more = f", and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
