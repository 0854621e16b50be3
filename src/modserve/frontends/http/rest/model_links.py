"""Models that lie anywhere, as models of a repository: folders of links to their files, under any name."""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from modserve.core.errors import Code, ModserveError, invalid
from modserve.core.files import regular_file
from modserve.core.files.config_file import CONFIG_FILE
from modserve.core.version import may_be_model, parse_directory

_RECORDS = ".sagemaker"
"""Folder in the repository with a record for each model. What begins with a dot is no model."""
_FORBIDDEN = ("/dev", "/proc", "/sys")
_ENSEMBLE = re.compile(rb'platform\s*:\s*"ensemble"')
_TOKEN = re.compile(rb"#[^\n]*|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|[{}<>\[\]]|\w+|\S")


class LinkedModel(NamedTuple):
    """A linked model: `url` is its location; `models` were linked for it, itself first, then an ensemble's models."""

    url: str
    models: list[str]


class ModelLinks:
    """Links to models in the repository `root`. All methods block, and may be called from several processes."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._records = root / _RECORDS

    def urls(self) -> Mapping[str, str]:
        """Return the locations of the models, by their names."""
        return {name: record.url for name, record in self._all().items()}

    def add(self, name: str, url: str) -> None:
        """Link the model in the folder `url`, which has its files, or is a repository with it or with one ensemble.

        Raises INVALID_ARG, and ALREADY_EXISTS for a name that is taken.
        """
        if not name or not may_be_model(name) or "/" in name or "\0" in name:
            raise invalid(f"'model_name' cannot be the name of a model: '{name}'")
        folders = _folders(name, _check_url(url))
        owners = {model: owner for owner, record in self._all().items() for model in record.models}
        for model in folders:
            if model in owners:
                other = "" if owners[model] == model else f", with '{owners[model]}'"
                raise ModserveError(Code.ALREADY_EXISTS, f"model '{model}' is loaded already{other}")
        self._records.mkdir(exist_ok=True)
        for model, folder in folders.items():
            shutil.rmtree(self._root / model, ignore_errors=True)
            _link(self._root / model, folder)
        (self._records / name).write_text(json.dumps([url, list(folders)]))

    def remove(self, name: str) -> None:
        """Forget a model. Its own files stay."""
        for model in self._all()[name].models:
            shutil.rmtree(self._root / model, ignore_errors=True)
        (self._records / name).unlink(missing_ok=True)

    def _all(self) -> dict[str, LinkedModel]:
        try:
            return {
                entry.name: LinkedModel(*json.loads(entry.read_text())) for entry in sorted(self._records.iterdir())
            }
        except FileNotFoundError:
            return {}


def _check_url(url: str) -> Path:
    path = Path(url)
    real = Path(os.path.realpath(url))
    if not path.is_absolute() or not real.is_dir() or any(real.is_relative_to(each) for each in _FORBIDDEN):
        raise invalid(f"'url' is no folder of a model: '{url}'")
    return path


def _folders(name: str, path: Path) -> dict[str, Path]:
    """Return the folders of models by their names, the model `name` first. Raises INVALID_ARG."""
    below = sorted(each for each in path.iterdir() if each.is_dir() and may_be_model(each.name))
    if (path / CONFIG_FILE).is_file() or any(parse_directory(each.name) is not None for each in below):
        return {name: path}
    if not below:
        raise invalid(f"there is no model in '{path}'")
    chosen = below if len(below) == 1 else [each for each in below if _ENSEMBLE.search(_config(each))]
    if len(chosen) != 1:
        names = ", ".join(f"'{each.name}'" for each in below)
        raise invalid(f"there are several models in '{path}', and not one ensemble of the others: {names}")
    return {name: chosen[0]} | {each.name: each for each in below if each != chosen[0]}


def _config(folder: Path) -> bytes:
    try:
        return regular_file.read_bytes(folder / CONFIG_FILE)
    except FileNotFoundError:
        return b""


def _link(model: Path, folder: Path) -> None:
    model.mkdir()
    for each in folder.iterdir():
        if each.name != CONFIG_FILE:
            (model / each.name).symlink_to(each.resolve())
    if (folder / CONFIG_FILE).is_file():
        (model / CONFIG_FILE).write_bytes(without_name(_config(folder)))


def without_name(config: bytes) -> bytes:
    """Return a configuration that leaves the model's name out: it is that of the folder."""
    parts: list[bytes] = []
    end = 0
    for start, stop in _names(config):
        parts.append(config[end:start])
        end = stop
    return b"".join((*parts, config[end:]))


def _names(config: bytes) -> Iterator[tuple[int, int]]:
    """Yield the positions of the fields `name` of the model itself."""
    tokens = [match for match in _TOKEN.finditer(config) if not match[0].startswith(b"#")]
    depth = 0
    for index, token in enumerate(tokens):
        depth += token[0] in (b"{", b"<", b"[")
        depth -= token[0] in (b"}", b">", b"]")
        following = tokens[index + 1 : index + 3]
        if depth == 0 and token[0] == b"name" and len(following) == 2 and following[0][0] == b":":
            yield token.start(), following[1].end()
