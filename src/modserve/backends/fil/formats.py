"""The files of forests: their names, and how to distinguish them by their first bytes."""

from pathlib import Path

from modserve.core.files import regular_file

FILENAMES = {
    "xgboost_json": "xgboost.json",
    "xgboost_ubj": "xgboost.ubj",
    "xgboost": "xgboost.model",
    "lightgbm": "model.txt",
    "treelite_checkpoint": "checkpoint.tl",
}
"""Triton's ``model_type`` → the file that it expects."""
_BY_FILENAME = {filename: kind for kind, filename in FILENAMES.items()}
_BY_SUFFIX = {Path(filename).suffix: kind for kind, filename in FILENAMES.items()}
_XGBOOST = frozenset(kind for kind in FILENAMES if kind.startswith("xgboost"))
_HEAD = 64
_LEAST_TREELITE, _MOST_TREELITE = 2, 9
"""Major versions that a checkpoint may be of."""


def locate(path: Path, model_type: str) -> Path:
    """Return the model's file: `path`, or Triton's file for the ``model_type`` (may be empty) next to it."""
    if path.is_dir():
        present = [path / name for name in ([FILENAMES[model_type]] if model_type else FILENAMES.values())]
        return next((file for file in present if file.is_file()), path)
    expected = path.with_name(FILENAMES.get(model_type, path.name))
    others = path.name in _BY_FILENAME and path.name != expected.name
    return expected if expected.is_file() and (others or not path.is_file()) else path


def kind_of(path: Path, model_type: str) -> str:
    """Return the format of a file: for XGBoost by its content, otherwise by its name. Empty if unknown.

    XGBoost wrote its old binary format into ``xgboost.model`` up to version 2.0, and writes UBJSON since.
    """
    called = model_type or _BY_FILENAME.get(path.name, "")
    content = sniff(path)
    if called in _XGBOOST:
        return content if content in _XGBOOST else called
    return called or content or _BY_SUFFIX.get(path.suffix, "")


def sniff(path: Path) -> str:
    """Return the format of a file by its first bytes; empty if unknown."""
    with regular_file.open_regular(path) as file:
        head = file.read(_HEAD)
    if head.startswith((b"tree\n", b"tree\r\n")):
        return "lightgbm"
    if head.startswith(b"binf"):
        return "xgboost"
    if head.startswith(b"{"):
        return "xgboost_json" if head[1:2].isspace() or head[1:2] in (b'"', b"}") else "xgboost_ubj"
    versions = [int.from_bytes(head[at : at + 4], "little") for at in (0, 4, 8)]
    if len(head) == _HEAD and _LEAST_TREELITE <= versions[0] <= _MOST_TREELITE and max(versions) < 1000:
        return "treelite_checkpoint"
    return ""
