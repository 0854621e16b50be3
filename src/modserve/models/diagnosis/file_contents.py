"""Types of model files by their first bytes, and checks for a missing end, where a few bytes reveal that."""

import io
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from modserve.core.files import regular_file
from modserve.core.wire.protobuf_wire import read_varint, value_span

from .foreign_files import EXPORT_TORCH, SAVE_TORCH

_HEAD_BYTES = 256
_TAIL_BYTES = 4096
_MOST_FIELDS = 10_000
_MOST_FILES = 32
_ASSETS = ("assets", "assets.extra", "code")
_MODEL_SUFFIXES = frozenset(
    (".onnx", ".pb", ".graphdef", ".pdmodel", ".xml", ".bin", ".pt", ".pt2", ".h5", ".keras", ".safetensors", ".data")
)

_RAW = (".bin", ".data")

_LFS = b"version https://git-lfs"
_WEB_PAGE = "a web page, not what the download should have been"
_PICKLE = "a pickle, such as files of joblib, or of torch.save before PyTorch 1.6"
_ZIP = b"PK\x03\x04"
_HDF5 = b"\x89HDF\r\n\x1a\n"
_CONTENTS: tuple[tuple[bytes, str, str], ...] = (
    (
        _LFS,
        "the pointer of Git LFS to a file that was not fetched: run 'git lfs pull' where the files come from",
        "",
    ),
    (b"<!doctype", _WEB_PAGE, ""),
    (b"<html", _WEB_PAGE, ""),
    (b"\x1f\x8b", "compressed by gzip: unpack it", ""),
    (_ZIP, "a zip archive", ".pt .pt2 .pth .ckpt .skops .keras .npz .zip .mar"),
    (b"\x80\x02", _PICKLE, ".pkl .pickle .joblib"),
    (b"\x80\x03", _PICKLE, ".pkl .pickle .joblib"),
    (b"\x80\x04", _PICKLE, ".pkl .pickle .joblib"),
    (b"\x80\x05", _PICKLE, ".pkl .pickle .joblib"),
    (
        b"\x89hdf",
        "an HDF5 file, as written by Keras: save the model with model.export('model.savedmodel')",
        ".h5 .hdf5",
    ),
)
"""First bytes, in lower case, of files often found in place of a model; their types; and the right suffixes."""

_IN_ZIP = (
    ("constants.pkl", f"TorchScript: name it 'model.pt', for backend 'pytorch', or {EXPORT_TORCH}", ".pt .pt2"),
    ("data.pkl", f"a file of torch.save, which no engine runs: {SAVE_TORCH}, or {EXPORT_TORCH}", ""),
    ("archive_format", "a file of torch.export.save: name it 'model.pt2', for backend 'pytorch'", ".pt .pt2"),
    ("schema.json", "a file of skops: name it 'model.skops', for backend 'sklearn'", ".skops"),
    ("metadata.json", "a Keras file: save the model with model.export('model.savedmodel')", ".keras"),
)
"""The name of a file in a zip archive; what makes such archives; and where that is right."""


def problem(path: Path) -> str:
    """Return why a model file or directory cannot be a model; empty if nothing is wrong at first sight."""
    if path.is_symlink() and not os.path.exists(path):
        return f"'{path}' is a symbolic link to '{os.readlink(path)}', which does not exist"
    try:
        files = _files(path)
    except OSError:
        return ""
    problems = (_problem(file, of_model=file == path or not _is_beside(file.relative_to(path))) for file in files)
    return next(filter(None, problems), "")


def _files(path: Path) -> list[Path]:
    """Return a file, or the files in a directory and in its subdirectories."""
    if path.is_file():
        return [path]
    files = [file for pattern in ("*", "*/*") for file in sorted(path.glob(pattern)) if file.is_file()]
    return files[:_MOST_FILES]


def _is_beside(path: Path) -> bool:
    """True if a file in a directory may be empty, or of any kind: vocabularies, code and the like."""
    return path.parts[0] in _ASSETS or path.suffix.lower() not in _MODEL_SUFFIXES


def _problem(path: Path, *, of_model: bool = True) -> str:
    """Return a file's problem. If not `of_model`, it may be of any kind: only a pointer of Git LFS counts."""
    try:
        size = path.stat().st_size
        if not size:
            return f"'{path}' is empty" if of_model else ""
        with regular_file.open_regular(path) as file:
            head = file.read(_HEAD_BYTES)
            what = _foreign(path, head)
            if what and (of_model or head.startswith(_LFS)):
                return f"'{path}' is not a model: it is {what}"
            if not of_model:
                return ""
            if not any(head) and path.suffix.lower() not in _RAW:  # weights may begin with zeros
                return f"'{path}' is not a model: it begins with zeros, like a file whose content was never written"
            cut = _cut(path.suffix.lower(), head)
            missing = cut(file, head, size) if cut is not None else ""
    except (OSError, ValueError, IndexError):
        return ""
    return f"'{path}' is truncated: {missing}; copy it again" if missing else ""


def _foreign(path: Path, head: bytes) -> str:
    """Return a file's type by its first bytes, if that contradicts its name."""
    suffix = path.suffix.lower()
    for beginning, what, right in _CONTENTS:
        if head.lower().startswith(beginning.lower()):
            if beginning == _ZIP:
                return _zip_contents(path, suffix) or ("" if suffix in right.split() else what)
            return "" if suffix in right.split() else what
    return ""


def _zip_contents(path: Path, suffix: str) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.rpartition("/")[2] for name in archive.namelist()}
    except (zipfile.BadZipFile, RuntimeError, OSError, ValueError):  # RuntimeError: of features that Python lacks
        return ""
    for name, what, right in _IN_ZIP:
        if name in names:
            return "" if suffix in right.split() else what
    return ""


Cut = Callable[[io.BufferedReader, bytes, int], str]
"""Function from a file, its first bytes and its size to what is missing of it; empty if nothing is. Raises ValueError
or IndexError for a file of another type."""


def _cut(suffix: str, head: bytes) -> Cut | None:
    if head.startswith(_ZIP):
        return _cut_zip
    if head.startswith(_HDF5):
        return _cut_hdf5
    return _CUT_BY_SUFFIX.get(suffix)


def _cut_zip(file: io.BufferedReader, head: bytes, size: int) -> str:
    """Check for the record at the end of a zip archive with its directory's place; only a comment may follow it."""
    file.seek(max(0, size - 65_557))
    return "" if b"PK\x05\x06" in file.read() else "the directory at the end of a zip archive is missing"


def _cut_hdf5(file: io.BufferedReader, head: bytes, size: int) -> str:
    """Compare the size with the end of file in the superblock: HDF5 File Format Specification, II.A."""
    version = head[8]
    if version < 2:
        width, place = head[13], 24 if version == 0 else 28
        place += 2 * width
    else:
        width = head[9]
        place = 12 + 2 * width
    end = int.from_bytes(head[place : place + width], "little")
    return f"it should have {end} bytes, but has {size}" if size < end < 1 << 62 else ""


def _cut_protobuf(file: io.BufferedReader, head: bytes, size: int) -> str:
    """Walk the fields of a message, one after the other, up to the end of the file."""
    position = 0
    for _ in range(_MOST_FIELDS):
        if position >= size:
            return ""
        file.seek(position)
        start = file.read(20)
        key, at = read_varint(start, 0)
        if not 0 < key >> 3 < 1000:
            return ""  # no field of any model's format: it is another kind of file
        position += value_span(start, at, sys.maxsize, key)[1]
        if position > size:
            return f"it should have {position} bytes or more, but has {size}"
    return ""


def _cut_safetensors(file: io.BufferedReader, head: bytes, size: int) -> str:
    length = 8 + int.from_bytes(head[:8], "little")
    return f"its header has {length} bytes, but the file {size}" if head[8:9] == b"{" and length > size else ""


def _ends_with(*texts: bytes) -> Cut:
    def cut(file: io.BufferedReader, head: bytes, size: int) -> str:
        file.seek(max(0, size - _TAIL_BYTES))
        return "" if file.read().rstrip().endswith(texts) else f"there is no '{texts[0].decode()}' at its end"

    return cut


_CUT_BY_SUFFIX: dict[str, Cut] = {
    ".onnx": _cut_protobuf,
    ".pb": _cut_protobuf,
    ".graphdef": _cut_protobuf,
    ".pdmodel": _cut_protobuf,
    ".xml": _ends_with(b">"),
    ".json": _ends_with(b"}", b"]"),
    ".safetensors": _cut_safetensors,
}


def beside(path: Path) -> str:
    """Return the `problem` of a version's other files: weights next to the model's graph."""
    try:
        files = [file for file in sorted(path.parent.iterdir()) if file.is_file() and file != path][:_MOST_FILES]
        for file in files:
            with regular_file.open_regular(file) as opened:
                if opened.read(len(_LFS)) == _LFS:
                    return _problem(file)
    except OSError:
        pass
    return ""
