"""Repository of the model to tune: named by an option, of a server on this machine, or in the current folder.

Trials run on temporary servers, each with a copy of the model.
"""

import contextlib
import ipaddress
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from modserve.client.address import Address
from modserve.commands import own_server
from modserve.commands.destination import Destination, address
from modserve.commands.syntax import DEFAULT_URL, URL_VARIABLE, UsageError
from modserve.core.errors import invalid
from modserve.core.version import parse_directory
from modserve.resources.posix import listener
from modserve.settings import OptionError, Settings, from_command_line

_USUAL = (".", "models", "model_repository")
"""Usual repositories: the current folder, the one of ``modserve init``, and the documentation's."""


def model_repository(model: str, option: str) -> Path:
    """Return the directory `option`, or else the first usual repository with the model. Raises UsageError."""
    if option:
        if not (Path(option) / model).is_dir():
            raise UsageError(f"model '{model}' does not exist in '{option}'")
        return Path(option)
    url = os.environ.get(URL_VARIABLE) or DEFAULT_URL
    served, files = local_repositories(address(url))
    file = files.get(model)
    if file is not None and parse_directory(file.parent.name) is not None and file.parents[1].name == model:
        return file.parents[2]
    for place in (*served, *map(Path, _USUAL)):
        if (place / model).is_dir():
            return place
    if file is not None:
        raise UsageError(
            f"the server at {url} serves model '{model}' from {file}, which is in no repository: "
            f"'modserve init {model} --from {file}' puts a copy into ./models"
        )
    looked = [f"'{place}'" for place in served] + ["the current folder", *(f"'{name}'" for name in _USUAL[1:])]
    raise UsageError(
        f"model '{model}' does not exist in {', '.join(looked[:-1])} or {looked[-1]}; "
        "'--model-repository DIR' names the directory that contains it"
    )


def local_repositories(server: Address, process: Path | None = None) -> tuple[Sequence[Path], Mapping[str, Path]]:
    """Return the local repositories of a server on this machine, and its model files by name.

    They are read from the process's command line, variables and option file, as servers do not report their paths.
    `process` is its folder in /proc. Empty if the process is not readable.
    """
    if process is None:
        process = listener(server.port) if _is_local(server.host) and not server.socket else None
    if process is None:
        return (), {}
    try:
        words = _texts(process / "cmdline")
        variables = dict(each.split("=", 1) for each in _texts(process / "environ") if "=" in each)
        with contextlib.chdir(process / "cwd"):
            settings = from_command_line(list(_options(words)), variables).settings
            places = [place.resolve() for place in settings.repositories if isinstance(place, Path)]
            return places, _files(settings)
    except (OSError, OptionError, ValueError):  # another user's process, a process that ended, or another program
        return (), {}


def _files(settings: Settings) -> Mapping[str, Path]:
    return {name or path.stem: path.resolve() for name, path in settings.model_file}


def _texts(file: Path) -> list[str]:
    return os.fsdecode(file.read_bytes()).split("\0")[:-1]


def _options(words: Sequence[str]) -> Iterator[str]:
    """Yield the words after ``modserve [worker IDENTITY] [serve]``. Raises ValueError without ``modserve``."""
    begin = [Path(word).name for word in words].index("modserve") + 1
    if words[begin : begin + 1] == ["worker"]:
        begin += 2
    if words[begin : begin + 1] == ["serve"]:
        begin += 1
    yield from words[begin:]


def _is_local(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


CONFIG_FILE = "config.pbtxt"


class ModelCopy:
    """Repository with a copy of a model. Its configuration changes between trials."""

    def __init__(self, directory: Path, model: Path) -> None:
        """Copy the model. Raises INVALID_ARG if that fails."""
        self.repository = directory
        self.folder = directory / model.name
        try:
            shutil.copytree(model, self.folder)
        except (OSError, shutil.Error) as error:
            raise invalid(f"cannot copy '{model}' to '{directory}': {error}; TMPDIR names another place") from None

    def configure(self, text: str) -> None:
        (self.folder / CONFIG_FILE).write_text(text, "utf-8")


def serving(copy: ModelCopy, options: Sequence[str], seconds: float) -> contextlib.AbstractContextManager[Destination]:
    """Serve a copy within the block. Raises INVALID_ARG if the model does not load within `seconds`."""
    return own_server.serving([f"--model-repository={copy.repository}", *options], seconds, copy.folder.name)
