"""``modserve init``: writes the files of a new model, and prints the next steps."""

import contextlib
import logging
import re
import shutil
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path

from modserve.backends.registry import BackendRegistry
from modserve.client.address import PORTS
from modserve.commands.terminal import stdout_as_stderr
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import invalid
from modserve.models.loading.one_file import StandaloneModel, model_file
from modserve.process.console import HttpAddress, example_call

from .. import config
from ..syntax import UsageError, option, parser
from .templates import KINDS, call
from .texts import text_calls

_DESCRIPTION = """\
Creates the folders and files of a new model, with a comment on each line, and prints the command
that serves it. It never overwrites files."""
_CODES = "0 written, 1 the files cannot be written or the model does not load, 2 wrong command line"
_EXAMPLES = """\
  modserve init classifier --from model.onnx
  modserve init smol --from smol.gguf
  modserve init classifier --from python
  modserve init pipeline --from ensemble --model-repository my_models"""

PARSER = parser("init", _DESCRIPTION, _EXAMPLES, _CODES)
PARSER.add_argument("name", metavar="NAME", help="Name of the model and of its folder.")
PARSER.add_argument(
    "--from",
    dest="source",
    metavar="WHAT",
    required=True,
    help="A model file or folder to copy, such as model.onnx, smol.gguf or a snapshot of Hugging Face; "
    "python for a model.py as in Triton's python backend; "
    "function for a decorated function; ensemble for two models in Python, one after the other.",
)
option(PARSER, "--model-repository DIR", "The model repository. [default: models]", default="models")

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


def work(options: Namespace) -> int:
    """Run the command and return the exit code."""
    if not _NAME.fullmatch(options.name):
        raise UsageError(f"'{options.name}' is not a valid model name: expected letters, digits and _ . + -")
    repository = Path(options.model_repository)
    make = KINDS.get(options.source)
    path = Path(options.source)
    if make is None and not path.exists():
        kinds = ", ".join(KINDS)
        raise UsageError(f"option '--from': file '{path}' does not exist, and is none of {kinds}")
    if make is not None:
        written = _write(repository, {repository / path: text for path, text in make(options.name).items()})
        calls = {"then call it:": call(options.name)}
    else:
        written, model = _copy(repository / options.name, path)
        place = HttpAddress("localhost", PORTS["http"])
        calls = text_calls(model, repository / options.name / "1", place) or {
            "then call it:": example_call([model], place),
            "and measure it, with generated data:": f"modserve bench {model.name}",
        }
    print("\n".join(f"wrote {file}" for file in written))
    print("\n".join(_next(repository, calls)))
    return 0


def _write(repository: Path, files: dict[Path, str]) -> list[Path]:
    """Write the models. Raises INVALID_ARG, without writing anything, if one of them exists."""
    models = {repository / path.relative_to(repository).parts[0] for path in files}
    for model in sorted(models):
        _refuse(model)
    with _all_or_nothing(*models):
        for path, text in files.items():
            folder = path if path.name.isdigit() else path.parent
            folder.mkdir(parents=True, exist_ok=True)
            if folder != path:
                path.write_text(text, "utf-8")
    return [path for path in files if path.is_file()]


def _copy(model: Path, source: Path) -> tuple[list[Path], ModelConfig]:
    """Write the model of a file: a copy in version 1, and the configuration that its engine makes of it."""
    _refuse(model)
    file = model_file(source, BackendRegistry().names)
    folder = model / "1"
    logging.getLogger().addHandler(logging.NullHandler())  # what is wrong comes as an error
    with _all_or_nothing(model):
        folder.mkdir(parents=True)
        for each in _belonging(file):
            (shutil.copytree if each.is_dir() else shutil.copy2)(each, folder / each.name)
        with stdout_as_stderr():
            made = config.make(StandaloneModel(model.name, folder.absolute(), file.filename, True, file.backend))
        (model / "config.pbtxt").write_text(made.text.replace("modserve config", "modserve init", 1), "utf-8")
    return [model / "config.pbtxt", *sorted(path for path in folder.iterdir())], made.config


def _belonging(file: StandaloneModel) -> Iterator[Path]:
    """Yield the files of a model: its whole folder, or the files with its name and another ending."""
    if file.is_folder:
        yield from sorted(file.folder.iterdir())
        return
    yield file.path
    for each in sorted(file.folder.iterdir()):
        is_weights = each.name.startswith(f"{file.filename}.") or each.name in (
            f"{file.path.stem}.data",
            *([f"{file.path.stem}.bin"] if file.path.suffix == ".xml" else []),
        )
        if is_weights and each.is_file():
            yield each


def _refuse(model: Path) -> None:
    if model.exists() or model.is_symlink():
        raise invalid(f"'{model}' already exists and is not overwritten; choose another name, or remove it")


@contextlib.contextmanager
def _all_or_nothing(*models: Path) -> Iterator[None]:
    """Remove these directories if the block fails. Raises INVALID_ARG for errors of the system."""
    try:
        yield
    except BaseException as error:
        for model in models:
            shutil.rmtree(model, ignore_errors=True)
        if isinstance(error, OSError):
            raise invalid(f"cannot write '{error.filename or models[0]}': {error.strerror or error}") from error
        raise


def _next(repository: Path, calls: Mapping[str, str]) -> Iterator[str]:
    """Yield the next steps; `calls` are the model's calls by purpose."""
    yield ""
    yield "serve it:"
    yield f"  modserve serve --model-repository {repository}"
    for head, text in calls.items():
        yield head
        yield from (f"  {line}" for line in text.splitlines())
    yield "after a change, check it:"
    yield f"  modserve check {repository}"
