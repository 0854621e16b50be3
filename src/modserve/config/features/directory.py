"""Fields deduced from the model's directory: ``name``, ``platform``, ``backend``, ``version_policy`` and file names."""

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from modserve.core.errors import ModserveError
from modserve.core.version import VersionPolicy, parse_directory
from modserve.pb import inference as pb

from ..text.problems import ConfigurationError, Faults, FieldPath
from . import backend_names

ENSEMBLE = "ensemble"
_NO_BACKEND = "Invalid model name: "
"""Prefix of Triton's message for a model with an unknown backend."""
Notes: TypeAlias = list[tuple[FieldPath, str]]
"""Fields with a changed meaning, and an explanation."""


class ModelFormat(NamedTuple):
    """A model file format. `platform` is Triton's name, empty if there is none."""

    filename: str
    backend: str
    platform: str = ""
    by_suffix: bool = True
    """True if other files with this suffix are likely to be such models."""
    any_name: bool = False
    """True if only the suffix matters; the name `filename` is not used in practice."""
    beside: str = ""
    """Another file in the folder that this format requires."""

    def file_in(self, names: Collection[str]) -> str:
        """Return the model file among the `names` in a folder; empty if there is none of this format."""
        if self.beside and self.beside not in names:
            return ""
        if self.filename in names:
            return self.filename
        suffix = Path(self.filename).suffix
        return next((name for name in sorted(names) if name.endswith(suffix)), "") if self.any_name else ""


# In Triton's order, followed by formats unknown to Triton. The first one counts if a directory has several, such as a
# model.py with weights. MLmodel is first, as the files of its library are next to it. saved_model.pb: in TensorFlow
# Serving, the version's folder is the SavedModel. onnx/ and openvino_*: Hugging Face snapshots, with a detokenizer for
# text generation.
FORMATS = (
    ModelFormat("MLmodel", "mlflow", by_suffix=False),
    ModelFormat("model.savedmodel", "tensorflow", "tensorflow_savedmodel"),
    ModelFormat("model.graphdef", "tensorflow", "tensorflow_graphdef"),
    ModelFormat("model.plan", "tensorrt", "tensorrt_plan"),
    ModelFormat("model.onnx", "onnxruntime", "onnxruntime_onnx"),
    ModelFormat("model.xml", "openvino"),
    ModelFormat("onnx/model.onnx", "onnxruntime", "onnxruntime_onnx", by_suffix=False),
    ModelFormat("openvino_model.xml", "openvino_genai", by_suffix=False, beside="openvino_detokenizer.xml"),
    ModelFormat("openvino_model.xml", "openvino", by_suffix=False),
    ModelFormat("openvino/openvino_model.xml", "openvino", by_suffix=False),
    ModelFormat("model.pt", "pytorch", "pytorch_libtorch"),
    ModelFormat("model.pt2", "pytorch", "torch_aoti"),
    ModelFormat("model.py", "python"),
    ModelFormat("saved_model.pb", "tensorflow", "tensorflow_savedmodel", by_suffix=False),
    ModelFormat("model.tflite", "openvino"),
    ModelFormat("model.pdmodel", "openvino"),
    ModelFormat("xgboost.json", "fil", by_suffix=False),
    ModelFormat("xgboost.ubj", "fil"),
    ModelFormat("xgboost.model", "fil", by_suffix=False),
    ModelFormat("model.txt", "fil", by_suffix=False),
    ModelFormat("checkpoint.tl", "fil"),
    ModelFormat("model.skops", "sklearn"),
    ModelFormat("model.joblib", "sklearn"),
    ModelFormat("model.pkl", "sklearn"),
    ModelFormat("model.pickle", "sklearn"),
    ModelFormat("model.gguf", "openvino_genai", any_name=True),
    ModelFormat("model.json", "vllm", by_suffix=False),
)
_SUBFOLDERS = frozenset(row.filename.split("/")[0] for row in FORMATS if "/" in row.filename)
PLATFORMS = {row.platform: row.backend for row in FORMATS if row.platform} | {"libtorch": "pytorch"}
"""Platform → backend."""


BACKENDS = frozenset(row.backend for row in FORMATS)


MEASURED = frozenset({"onnxruntime", "openvino", "pytorch", "tensorflow"})
"""Backends with files that the backend `auto` accepts and chooses an engine for."""


def identify(
    message: pb.ModelConfig,
    name: str,
    filenames: Sequence[Collection[str]],
    backends: Collection[str] = BACKENDS,
    *,
    measured: bool = False,
) -> Notes:
    """Fill in name, backend, platform and default_model_filename where they can be deduced.

    `filenames` are the file names in each version's folder, the lowest version first. With `measured`, a model file
    without a configured backend selects `auto`, if it accepts the file.

    Like Triton's ``AutoCompleteBackendFields``, with three additions. Any file name with a known suffix counts. The
    files of all version directories count, not only of the first. A backend that is not one of `backends` is renamed if
    it is an alias, or a misspelling that the model's file resolves; the returned notes report this.
    """
    if not message.name:
        message.name = name
    notes = _rename(message, filenames, backends)
    present = _present_format(message, filenames)
    if measured and present is not None and present.backend in MEASURED and not (message.backend or message.platform):
        message.backend = "auto"
        message.default_model_filename = message.default_model_filename or present.filename
    if not message.backend:
        message.backend = PLATFORMS.get(message.platform, "") or (present.backend if present else "")
    formats = [row for row in FORMATS if row.backend == message.backend]
    formats.sort(key=lambda row: (row != present, row.platform != message.platform))
    if present is not None and present not in formats and present.backend == message.backend:
        formats.insert(0, present)
    if formats:
        message.platform = message.platform or formats[0].platform
        message.default_model_filename = message.default_model_filename or formats[0].filename
    return notes


def _rename(message: pb.ModelConfig, filenames: Sequence[Collection[str]], backends: Collection[str]) -> Notes:
    """Replace an alias or misspelling of a backend, given as backend or platform, by its real name."""
    written, field = message.backend, "backend"
    if not written and message.platform not in PLATFORMS and message.platform != ENSEMBLE:
        written, field = message.platform, "platform"
    if not written or (field == "backend" and written in backends):
        return []
    name = backend_names.meaning(written, backends, PLATFORMS)
    why = "another name of"
    if name is None:
        near = backend_names.nearest(written, backends)
        like = pb.ModelConfig(backend=near, default_model_filename=message.default_model_filename)
        present = _present_format(like, filenames)
        if present is None or present.backend != near:
            return []
        name, why = backend_names.BackendName(near), f"taken for '{near}', since the model's file is one of"
    if field == "platform" or not message.platform:
        message.platform = name.platform
    message.backend = name.backend
    for key, value in name.parameters.items():
        if key not in message.parameters:
            message.parameters[key].string_value = value
    return [((field,), f"{field} '{written}' of model '{message.name}' is {why} backend '{name.backend}'")]


def _present_format(message: pb.ModelConfig, filenames: Sequence[Collection[str]]) -> ModelFormat | None:
    """Return the format of the model's file, which the configuration names or the directory contains."""
    filename = Path(message.default_model_filename)
    if filename.name:
        beside = frozenset[str]().union(*filenames)
        same = (row for row in FORMATS if row.filename == filename.name and (not row.beside or row.beside in beside))
        alike = (row for row in FORMATS if row.by_suffix and Path(row.filename).suffix == filename.suffix)
        return next(same, None) or next(alike, None)
    if message.platform:
        return None
    for names in filenames:
        for row in FORMATS:
            if message.backend in ("", row.backend) and (file := row.file_in(names)):
                return row._replace(filename=file)
    # Triton's last resort: a model named `x.identity` uses the backend `identity`.
    backend = message.name.partition(".")[2]
    return ModelFormat(f"model.{backend}", backend) if backend and not message.backend else None


def version_filenames(folder: Path) -> list[frozenset[str]]:
    """Return the names in each version's folder, the lowest version first; empty if the model has no folder.

    Only subfolders that may contain the model's file are searched.
    """
    try:
        versions = sorted(filter(None, (parse_directory(entry.name) for entry in folder.iterdir())))
        return [frozenset(names_in(folder / str(version))) for version in versions]
    except OSError:  # no folder, or a file
        return []


def names_in(folder: Path) -> Iterator[str]:
    """Yield the names in a version's folder and in subfolders that may contain the model. Raises OSError."""
    for entry in folder.iterdir():
        yield entry.name
        if entry.name in _SUBFOLDERS and entry.is_dir():
            yield from (f"{entry.name}/{below.name}" for below in entry.iterdir())


def only_lacks_backend(error: ModserveError) -> bool:
    """Return True if a missing backend is the only fault of a configuration."""
    problems = error.problems if isinstance(error, ConfigurationError) else ()
    return len(problems) > 0 and all(problem.text.startswith(_NO_BACKEND) for problem in problems)


def validate_platform(message: pb.ModelConfig, directory: str) -> Faults:
    """Check platform and backend. `directory` is the name of the model's directory."""
    name, platform, backend = message.name, message.platform, message.backend
    if name != directory:
        rule = f'directory name must equal model name; write name: "{directory}", or leave the name out'
        yield ("name",), f"unexpected directory name '{directory}' for model '{name}', {rule}"
    if platform == ENSEMBLE:
        if backend:
            rule = f"must have platform type '{platform}' and empty backend type"
            yield ("backend",), f"Ensemble model '{name}' {rule}"
    elif not (backend or platform or message.default_model_filename or "." in directory):
        # As in Triton, with or without auto-completion.
        cause = f"Could not determine backend for model '{directory}' with no backend in model configuration."
        yield (), f"{_NO_BACKEND}{cause} Expected model name of the form 'model.<backend_name>'."
    elif not backend:
        platforms = ", ".join(PLATFORMS)
        yield ("platform",), f"unexpected platform type '{platform}' for {name}; known platforms are: {platforms}"
    elif platform and backend in PLATFORMS.values() and PLATFORMS.get(platform) != backend:
        yield ("platform",), f"unexpected 'platform' and 'backend' pair, got:{platform}, {backend}"


def validate_versions(message: pb.ModelConfig) -> Faults:
    policy = message.version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "latest" and policy.latest.num_versions == 0:
        yield ("version_policy", "latest", "num_versions"), "version policy 'latest' must have 'num_versions' > 0"
    if choice == "specific":
        path: FieldPath = ("version_policy", "specific", "versions")
        if not policy.specific.versions:
            yield path, "version policy 'specific' must list one or more 'versions'"
        for index, version in enumerate(policy.specific.versions):
            if version <= 0:
                yield (*path, index), f"version policy 'specific' lists {version}, versions are integers > 0"


def version_policy(message: pb.ModelConfig) -> VersionPolicy:
    """Return the version policy. As in Triton, a policy without a choice means all versions."""
    policy = message.version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "latest" or not message.HasField("version_policy"):
        return VersionPolicy(latest=max(1, policy.latest.num_versions))
    return VersionPolicy(specific=tuple(policy.specific.versions) if choice == "specific" else ())


_MOST_BYTES, _MOST_PART_BYTES = 4096, 255
_MOST_SHOWN = 100


def filename_fault(filename: str, description: str, where: str) -> str:
    """Return the fault of a file name that must be below a directory; empty if there is none.

    `description` describes the file, with ``{}`` for its name; `where` describes the directory.
    """
    shown = description.replace("{}", filename if len(filename) <= _MOST_SHOWN else f"{filename[:_MOST_SHOWN]}…")
    if os.path.isabs(filename) or os.path.normpath(filename).split(os.sep)[0] == os.pardir:
        return f"{shown} is outside {where}"
    encoded = filename.encode("utf-8", "surrogatepass")
    if b"\0" in encoded:
        return f"{shown} has a null character, and no file has that"
    if len(encoded) > _MOST_BYTES or max(map(len, encoded.split(b"/"))) > _MOST_PART_BYTES:
        return f"{shown} is longer than the name of any file"
    return ""


def validate_filenames(message: pb.ModelConfig) -> Faults:
    name = message.name
    what = f"model file path '{{}}' in model '{name}'"
    if text := filename_fault(message.default_model_filename, what, "version directory"):
        yield ("default_model_filename",), text
    for index, output in enumerate(message.output):
        what = f"label file path '{{}}' for output '{output.name}' in model '{name}'"
        if text := filename_fault(output.label_filename, what, "model directory"):
            yield ("output", index, "label_filename"), text
