"""Search for the model file in a version directory, and the formats that OpenVINO reads."""

from pathlib import Path

from modserve.core.errors import invalid

DEFAULT = "model.xml"
_FILENAMES = (
    DEFAULT,
    "model.onnx",
    "model.savedmodel",
    "model.saved_model",
    "model.graphdef",
    "model.pb",
    "model.tflite",
    "model.pdmodel",
)
"""Model files in order of preference; the documentation of Triton's backend has the fourth name for the third."""
SAVED_MODEL = "saved_model.pb"


def model_file(path: Path, model: str) -> Path:
    """Return the file that OpenVINO reads for `path`, the file that the configuration names, or the default.

    In place of the default, any file in the version directory counts that has the name of another format; of a
    directory that is no SavedModel, the model file in it. Raises INVALID_ARG.
    """
    if path.is_dir() and not (path / SAVED_MODEL).exists():
        inside = _first(path)
        if inside is None:
            names = ", ".join(sorted(entry.name for entry in path.iterdir())[:10]) or "nothing"
            raise invalid(
                f"model '{model}': directory '{path}' is not a SavedModel (no file {SAVED_MODEL}) "
                f"and has no model file ({', '.join(_FILENAMES)}): it has {names}"
            )
        path = inside
    if not path.exists():
        other = _first(path.parent) if path.name == DEFAULT else None
        if other is None:
            raise invalid(f"unable to find model file '{path}' for model '{model}'")
        path = other
    return path


def _first(directory: Path) -> Path | None:
    return next((directory / name for name in _FILENAMES if (directory / name).exists()), None)
