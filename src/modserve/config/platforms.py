"""Which backend a model belongs to, told by its platform, by the name of its file, or by what lies there.

As Triton's ``AutoCompleteBackendFields``, with two additions: any file name with a known extension counts, and every
version directory is looked at, not only the first.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from modserve.core.version import parse_directory
from modserve.pb import inference as pb

ENSEMBLE = "ensemble"


class ModelFormat(NamedTuple):
    """A kind of model file. `platform` is empty where Triton has no such name for it."""

    filename: str
    backend: str
    platform: str = ""


# In Triton's order, which decides where several lie side by side.
FORMATS = (
    ModelFormat("model.savedmodel", "tensorflow", "tensorflow_savedmodel"),
    ModelFormat("model.graphdef", "tensorflow", "tensorflow_graphdef"),
    ModelFormat("model.plan", "tensorrt", "tensorrt_plan"),
    ModelFormat("model.onnx", "onnxruntime", "onnxruntime_onnx"),
    ModelFormat("model.xml", "openvino"),
    ModelFormat("model.pt", "pytorch", "pytorch_libtorch"),
    ModelFormat("model.pt2", "pytorch", "torch_aoti"),
    ModelFormat("model.py", "python"),
)
PLATFORMS = {row.platform: row.backend for row in FORMATS if row.platform} | {"libtorch": "pytorch"}
"""Platform → backend."""


def identify(config: pb.ModelConfig, name: str, directory: Path) -> None:
    """Fills in name, backend, platform and default_model_filename, as far as they can be told."""
    if not config.name:
        config.name = name
    found = _found(config, directory)
    if not config.backend:
        config.backend = PLATFORMS.get(config.platform, "") or (found.backend if found else "")
    formats = [row for row in FORMATS if row.backend == config.backend]
    formats.sort(key=lambda row: (row != found, row.platform != config.platform))
    if not formats and found is not None and found.backend == config.backend:
        formats = [found]
    if formats:
        config.platform = config.platform or formats[0].platform
        config.default_model_filename = config.default_model_filename or formats[0].filename


def _found(config: pb.ModelConfig, directory: Path) -> ModelFormat | None:
    """The format of the model's file, as named in the configuration or found in the directory."""
    filename = Path(config.default_model_filename)
    if filename.name:
        return next((row for row in FORMATS if Path(row.filename).suffix == filename.suffix), None)
    if config.platform:
        return None
    for present in _version_contents(directory):
        for row in FORMATS:
            if row.filename in present and config.backend in ("", row.backend):
                return row
    # Triton's last resort: a model called `x.identity` is for the backend `identity`.
    backend = config.name.partition(".")[2]
    return ModelFormat(f"model.{backend}", backend) if backend and not config.backend else None


def _version_contents(directory: Path) -> Iterator[set[str]]:
    """The names in each version directory, lowest version first."""
    try:
        versions = sorted(filter(None, (parse_directory(entry.name) for entry in directory.iterdir())))
        for version in versions:
            yield {entry.name for entry in (directory / str(version)).iterdir()}
    except OSError:  # no directory, or a file called like one: nothing can be told
        return
