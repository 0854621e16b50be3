"""Advice for people on a model that does not load, in addition to Triton's error text.

All functions only read a directory and return text, empty if there is no advice.
"""

import difflib
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from modserve.backends.catalogue import BY_BACKEND
from modserve.config import FORMATS, PLATFORMS, backend_names
from modserve.core.errors import ModserveError
from modserve.core.files.config_file import CONFIG_FILE, misspelt_config
from modserve.core.version import not_a_version, parse_directory

from . import file_contents
from .foreign_files import BY_SUFFIX, ForeignFile, advice

_MLFLOW = "MLmodel"
_MOST_NAMES = 10
_MOST_BELOW = 5

_LANGUAGE = "language models run on backend 'openvino_genai' (GGUF files, OpenVINO IR), or 'vllm' (model.json)"
_NOT_SUPPORTED: Mapping[str, str] = {
    "dali": "DALI pipelines do not run here",
    **dict.fromkeys(("tensorrtllm", "llm", "llamacpp"), _LANGUAGE),
    "ensemble": 'an ensemble has no backend: write platform: "ensemble", and ensemble_scheduling',
}
"""Reasons for missing Triton backends, and what to do, by folded name."""

NAMED_BY_FOLDER = (
    "it comes from the end of the folder's name, since that has neither config.pbtxt nor a model file; folders whose "
    "names begin with '.' are ignored, for example while they are being copied"
)

_GLOBAL_OPTIONS: Mapping[str, str] = {
    "auto-complete-config": "use --disable-auto-complete-config",
    "min-compute-capability": "every GPU that the engine can use is used",
    "backend-directory": "backends are Python packages, found by their entry points",
    "additional-dependency-dirs": "it is about libraries on Windows",
}
"""Triton options for all backends that have no effect here, with the reason."""


def append_advice(error: ModserveError, advice: str) -> ModserveError:
    """Return the failure with the advice appended to its text."""
    return ModserveError(error.code, f"{error.message}\n{advice}") if advice else error


def backend_name(name: str, installed: Collection[str]) -> str:
    """Return advice on a missing backend. Suggests only backends that are installed or available."""
    folded = backend_names.fold(name)
    if folded in _NOT_SUPPORTED:
        return _NOT_SUPPORTED[folded]
    backends = {*installed, *BY_BACKEND}
    meaning = backend_names.meaning(name, backends, PLATFORMS)
    meant = backend_names.nearest(name, installed) if meaning is None else meaning.backend
    hint = f"did you mean '{meant}'?" if meant != name else ""
    if not meant or meant in installed:
        return hint if meant else ""
    engine = BY_BACKEND[meant]
    return f"{hint} It needs {engine.library}: {engine.install_text}".strip() if engine.install else ""


def absent_backends(configured: Iterable[str], installed: Collection[str]) -> list[str]:
    """Return warnings for missing backends with options on the command line."""
    warnings = []
    for name in configured:
        if name and name not in installed:
            hint = backend_name(name, installed)
            warnings.append(
                f"--backend-config={name},… has no effect: there is no backend '{name}' here, installed backends are: "
                f"{', '.join(installed)}" + (f"; {hint}" if hint else "")
            )
    return warnings


def unknown_options(
    backend: str, options: Iterable[str], known: Mapping[str, str], shared: Collection[str] = ()
) -> list[tuple[int, str]]:
    """Return log lines, with levels, on ineffective options of a backend.

    `known`: option → why it has no effect, or empty. `shared`: options set for all backends; a backend that does not
    know them gives no warning, unless it knows an option with almost the same spelling.
    """
    lines = []
    for key in options:
        why = known.get(key) if key in known else _GLOBAL_OPTIONS.get(key)
        if why == "":
            continue
        if why is None:
            names, cutoff = [each for each, reason in known.items() if not reason], 0.8 if key in shared else 0.6
            near = difflib.get_close_matches(key, names, n=1, cutoff=cutoff)
            if key in shared and not near:
                lines.append((logging.INFO, f"backend option '{key}', set for all backends: '{backend}' has none such"))
                continue
            why = f"backend '{backend}' does not know it" + (f"; did you mean '{near[0]}'?" if near else "")
        lines.append((logging.WARNING, f"backend option '{key}' of backend '{backend}' has no effect: {why}"))
    return lines


def layout(directory: Path, installed: Collection[str]) -> str:
    """Describe the files of a model directory, the files that the backends accept, and what to do."""
    lines = [contents(directory), *_mistakes(directory, installed), _takes(installed)]
    return "\n".join(line for line in lines if line)


def correction(directory: Path, installed: Collection[str]) -> str:
    """Return advice on the files of a directory, with a list of them; empty if no file shows the intention.

    The files that backends accept are listed only if no file belongs to any backend.
    """
    lines = [*_mistakes(directory, installed), contents(directory)]
    if _foreign_in(directory, installed):
        lines.append(_takes(installed))
    return "\n".join(lines) if len(lines) > 1 else ""


def versions(directory: Path, present: Sequence[int], installed: Collection[str]) -> str:
    """Return advice if the version policy selects none of the present versions."""
    if present:
        return f"the available versions: {', '.join(map(str, present))}"
    return "\n".join([contents(directory), *_mistakes(directory, installed)])


def model_file(directory: Path, version: int, path: Path, installed: Collection[str], reason: str) -> str:
    """Return advice if a version has no model file, or one that the engine rejects.

    `path`: the file named by the configuration or the backend. `reason`: the engine's error text. If the file is
    missing and the text names another existing file, that is the file that the engine has read.
    """
    folder = directory / str(version)
    below = _list_directory(folder)
    try:
        if path.exists() or path.is_symlink():
            return file_contents.problem(path) or file_contents.beside(path)
        if read := [folder / name for name in below if f"'{folder / name}'" in reason]:
            return next(filter(None, map(file_contents.problem, read)), "")
    except OSError:
        return ""
    if not below:
        return f"'{folder}' is empty"
    lines = [f"'{folder}' holds: {_some(below, _MOST_NAMES)}"]
    same = [name for name in below if Path(name).suffix == path.suffix and path.suffix]
    if len(same) == 1:
        lines.append(_rename(f"{version}/{same[0]}", f"{version}/{path.name}"))
    else:
        lines += _foreign([f"{version}/{name}" for name in below], installed)
    return "\n".join(lines)


def contents(directory: Path) -> str:
    """List the contents of a directory and its subdirectories."""
    names = _list_directory(directory)
    if not names:
        return f"'{directory}' is empty"
    shown = [
        f"{name}/ ({_some(_list_directory(directory / name), _MOST_BELOW) or 'empty'})"
        if (directory / name).is_dir()
        else name
        for name in names
    ]
    return f"'{directory}' holds: {_some(shown, _MOST_NAMES)}"


def _mistakes(directory: Path, installed: Collection[str]) -> Iterator[str]:
    names = _list_directory(directory)
    if parse_directory(directory.name) is not None and any(not (directory / name).is_dir() for name in names):
        yield (
            f"'{directory.parent}' seems to be the folder of one model: --model-repository takes the folder that the "
            f"folders of models are in, '{directory.parent.parent}'"
        )
        return
    suffixes = _by_suffix(installed)
    has_version = any(parse_directory(name) is not None for name in names if (directory / name).is_dir())
    for name in names:
        path = directory / name
        if path.is_dir() and not has_version and (mistake := not_a_version(name)):
            yield mistake
        elif not path.is_dir() and path.suffix in suffixes:
            yield f"move '{name}' to '1/{suffixes[path.suffix]}': model files belong in the folder of their version"
    for name in names:
        if parse_directory(name) is not None:
            below = _list_directory(directory / name)
            for file in below:
                filename = suffixes.get(Path(file).suffix, "")
                if filename and filename not in below:
                    yield _rename(f"{name}/{file}", f"{name}/{filename}")
                    break
                if (directory / name / file / _MLFLOW).is_file():
                    yield f"'{name}/{file}' was saved by MLflow: write backend: \"mlflow\" into {CONFIG_FILE}"
                    break
    yield from _foreign_in(directory, installed)
    if misspelt := misspelt_config(directory):
        yield misspelt


def _by_suffix(installed: Collection[str]) -> dict[str, str]:
    """Return required file names by suffix, for files with any name before the suffix."""
    return {Path(row.filename).suffix: row.filename for row in FORMATS if row.backend in installed and row.by_suffix}


def _foreign_in(directory: Path, installed: Collection[str]) -> list[str]:
    names = _list_directory(directory)
    return _foreign(
        [*names, *(f"{name}/{file}" for name in names for file in _list_directory(directory / name))], installed
    )


def _foreign(files: Iterable[str], installed: Collection[str]) -> list[str]:
    """Return a line for each kind of file that no engine here accepts, or not unchanged."""
    lines: dict[ForeignFile, str] = {}
    served = _by_suffix(installed)
    for file in files:
        suffix = Path(file).suffix.lower()
        kind = BY_SUFFIX.get(suffix)
        if kind is not None and suffix not in served:
            lines.setdefault(kind, advice(file, kind, installed))
    return list(lines.values())


def _takes(installed: Collection[str]) -> str:
    installed = [name for name in installed if name not in BY_BACKEND or BY_BACKEND[name].runs_locally]
    files: dict[str, list[str]] = {}
    snapshots = {row for row in FORMATS if "/" in row.filename or row.filename.startswith("openvino")}
    for row in FORMATS:
        if row.backend in installed and row not in snapshots:  # snapshots of Hugging Face are never made by hand
            files.setdefault(row.backend, []).append(f"<version>/{row.filename}")
    backends = [f"'{backend}' takes {' or '.join(names)}" for backend, names in files.items()]
    by_name = sorted(set(installed) - files.keys())
    if by_name:
        backends.append(f'{", ".join(map(repr, by_name))}: by name, as backend: "{by_name[0]}" in {CONFIG_FILE}')
    return f"installed backends: {'; '.join(backends)}\n'modserve engines' lists what else can be installed"


def _rename(file: str, name: str) -> str:
    return (
        f"rename '{file}' to '{name}', or write default_model_filename: \"{os.path.basename(file)}\" into {CONFIG_FILE}"
    )


def _list_directory(directory: Path) -> list[str]:
    """List a directory in order; empty if `directory` is not a directory."""
    try:
        return sorted(name for name in os.listdir(directory) if not name.startswith("."))
    except OSError:
        return []


def _some(names: Sequence[str], most: int) -> str:
    more = f", and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
