"""Quantised forms of ONNX models, kept on disk: making one takes seconds, and needs the package `onnx`.

A kept file is named by what it was made from, and by its own content: it may be damaged, or from another program.
"""

import logging
import os
import sys
import tempfile
import time
from pathlib import Path

import onnxruntime as ort

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import ModserveError, invalid
from modserve.core.pip_command import pip_install

from .. import catalogue
from ..api import ModelSource
from ..options import QUANTIZED_DIRECTORY, parameters_of
from ..subprocesses import last_lines, run
from ..user_cache import content_digest, directory_of, file_digest

PARAMETER = "dynamic_quantization"
_EDITION = 1
"""Version of the quantisation: files of another edition are made again."""
_PROGRAM = Path(__file__).with_name("quantization_program.py")
_LIMIT_S = 1800.0
_KEPT_S = 90 * 24 * 3600.0
"""Files that no model has used for so long are deleted when another one is kept."""

_log = logging.getLogger(__name__)


def is_quantised(config: ModelConfig) -> bool:
    """Return True if the model is to be quantised. Raises INVALID_ARG."""
    return parameters_of(config).choice(PARAMETER, ("int8",)) == "int8"


class QuantisedFile:
    """The quantised form of the model in the file at `path`. Raises INVALID_ARG if there is none."""

    def __init__(self, path: Path, source: ModelSource) -> None:
        self._is_new = False
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._model = source.config.name
        directory = directory_of(source.options.get(QUANTIZED_DIRECTORY), "quantized")
        try:
            self.path = self._temporarily(path) if directory is None else self._find_or_make(path, directory)
        except OSError as error:
            raise invalid(f"model '{self._model}' cannot be quantised: {error}") from error

    def close(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()

    def forget(self) -> None:
        """Keep no file that this object has made."""
        if self._is_new:
            self.path.unlink(missing_ok=True)

    def _find_or_make(self, path: Path, directory: Path) -> Path:
        content = content_digest(path.parent)  # the file's weights may be in others beside it
        name = f"{path.stem}-{content[:32]}-ort{ort.__version__}-{_EDITION}-"
        intact = _intact(directory, name)
        if intact is not None:
            return intact
        try:
            directory.mkdir(parents=True, exist_ok=True)
            handle, part = tempfile.mkstemp(dir=directory, prefix=".part-")
            os.close(handle)
        except OSError as error:
            _log.warning(
                "model '%s' is quantised at every start, because '%s' cannot be written to: %s",
                self._model,
                directory,
                error.strerror or error,
            )
            return self._temporarily(path)
        try:
            self._run(path, Path(part))
            target = directory / f"{name}{file_digest(Path(part))[:32]}.onnx"
            os.replace(part, target)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise
        self._is_new = True
        _delete_unused(directory)
        return target

    def _temporarily(self, path: Path) -> Path:
        self._temporary = tempfile.TemporaryDirectory(prefix="modserve-quantized-")
        target = Path(self._temporary.name) / "model.onnx"
        try:
            self._run(path, target)
        except BaseException:
            self._temporary.cleanup()
            raise
        return target

    def _run(self, path: Path, target: Path) -> None:
        doing = f"model '{self._model}' cannot be quantised"
        if not catalogue.is_installed("onnx"):
            raise invalid(f"{doing}: this needs the package onnx: {pip_install(catalogue.QUANTIZATION)}")
        ended = run([sys.executable, "-P", str(_PROGRAM), str(path), str(target)], doing, _LIMIT_S)
        if ended.returncode:
            raise _failure(doing, last_lines(ended.stderr, 1).strip())


def _failure(doing: str, reason: str) -> ModserveError:
    return invalid(f"{doing}: {reason or 'the program ended without a reason'}")


def _intact(directory: Path, name: str) -> Path | None:
    """Return the kept file with a name that begins with `name`, if its content is unchanged."""
    for path in sorted(directory.glob(f"{name}*.onnx")):
        try:
            if file_digest(path).startswith(path.stem.removeprefix(name)):
                os.utime(path)
                return path
        except OSError as error:
            _log.warning("'%s' cannot be used: %s", path, error.strerror or error)
            continue
        _log.warning("'%s' is damaged; the model is quantised again", path)
    return None


def _delete_unused(directory: Path) -> None:
    for path in directory.glob("*.onnx"):
        try:
            if time.time() - path.stat().st_mtime > _KEPT_S:
                path.unlink()
        except OSError:  # another server was first
            continue
