"""``modserve config MODEL_FILE``: a full config.pbtxt for a model file, made of what its engine says of it."""

import asyncio
import logging
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from modserve.backends.registry import BackendRegistry
from modserve.core.errors import ModserveError
from modserve.models.loading.loader import Loader, LoaderOptions
from modserve.models.loading.one_file import ModelFile, model_file, repository_of
from modserve.pb import inference as pb
from modserve.repository.local import LocalRepository

from .config_text import written
from .model_check import findings
from .stdout import stdout_as_stderr

USAGE_ERROR = 2

HELP = """\
usage: modserve config MODEL_FILE [--max-batch-size N] [-o FILE]

Loads a model file, or a folder such as a SavedModel, and writes a complete config.pbtxt for it to
standard output: name, backend, inputs and outputs as the engine describes them, and common
options, commented out and explained.

  --max-batch-size N  Maximum number of rows per batch; 0: no batching. [default: what a server uses
                      without a configuration: 4 if the first dimension of every tensor is variable,
                      otherwise 0]
  -o FILE, --output FILE
                      Write to FILE, which must not exist.

exit codes: 0 written, 1 the model does not load, 2 wrong command line or file

examples:
  modserve config resnet50.onnx
  modserve config model_repository/resnet/1/model.onnx -o model_repository/resnet/config.pbtxt"""


class _WordsError(Exception):
    """A wrong command line."""


def main(words: Sequence[str]) -> int:
    """The command; `words` are those behind its name. Returns the exit code."""
    try:
        path, size, output = _read(words)
        if output is not None and output.exists():
            raise _WordsError(f"'{output}' is there already; remove it, or name another file")
        file = model_file(path, BackendRegistry().names)
    except (_WordsError, ModserveError) as error:
        print(f"modserve: {error}\nmodserve: see 'modserve config --help'", file=sys.stderr)
        return USAGE_ERROR
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        with stdout_as_stderr():
            text = make(file, size)
        if output is not None:
            output.write_text(text, "utf-8")
    except ModserveError as error:
        for finding in findings(error, str(path)):
            print("\n".join(filter(None, [f"modserve: {path}: {finding.text}", finding.advice])), file=sys.stderr)
        return 1
    except OSError as error:
        print(f"modserve: cannot write '{output}': {error.strerror}", file=sys.stderr)
        return USAGE_ERROR
    if output is None:
        print(text, end="")
    return 0


def _read(words: Sequence[str]) -> tuple[Path, int | None, Path | None]:
    """The model's file, max_batch_size if it is set, and the file to write."""
    files: list[str] = []
    values: dict[str, str] = {}
    remaining = iter(words)
    for word in remaining:
        name, equals, value = word.partition("=")
        name = {"-o": "--output"}.get(name, name).replace("_", "-")
        if not word.startswith("-"):
            files.append(word)
        elif name not in ("--max-batch-size", "--output"):
            raise _WordsError(f"unknown option '{word}'")
        else:
            values[name] = value if equals else next(remaining, "")
            if not values[name]:
                raise _WordsError(f"option '{name}' requires a value")
    if len(files) != 1:
        raise _WordsError(f"expected one model file, got: {' '.join(files) or 'none'}")
    size = values.get("--max-batch-size")
    if size is not None and not (size.isascii() and size.isdigit() and len(size) < 10):
        raise _WordsError(f"option '--max-batch-size': expected a number of 0 or more, got: {size}")
    output = values.get("--output")
    return Path(files[0]), None if size is None else int(size), None if output is None else Path(output)


def make(file: ModelFile, max_batch_size: int | None = None) -> str:
    """The text of a configuration. Raises what the load raises, with the names of the file's own folder."""
    with repository_of(file) as directory, ThreadPoolExecutor(1) as executor:
        registry = BackendRegistry()
        loader = Loader(registry, LoaderOptions(cores=1), executor)
        try:
            config = asyncio.run(_completed(loader, directory, file, max_batch_size or 0))
        except ModserveError as error:
            places = {str(directory / file.name / "1"): str(file.folder), str(directory / file.name): str(file.folder)}
            for place, own in places.items():
                error.message = error.message.replace(place, own)
            raise
    if max_batch_size == 0 and config.max_batch_size:
        _take_whole_shapes(config)
    return written(config, file, registry.get(config.backend).default_model_filename)


async def _completed(loader: Loader, directory: Path, file: ModelFile, max_batch_size: int) -> pb.ModelConfig:
    """The configuration that a server would make of a file, by loading it."""
    draft = pb.ModelConfig(default_model_filename=file.filename, max_batch_size=max_batch_size)
    listing = replace(LocalRepository(directory, outside_links=True).read(file.name), content=str(draft).encode())
    blueprint = await loader.inspect(listing)
    servable = await blueprint.load(listing.path, 1)
    try:
        return pb.ModelConfig.FromString(servable.config_message)
    finally:
        await servable.drain()
        await servable.close()


def _take_whole_shapes(config: pb.ModelConfig) -> None:
    """Without a batch, dims have the first dimension, too."""
    config.max_batch_size = 0
    config.ClearField("dynamic_batching")
    tensors: list[pb.ModelInput | pb.ModelOutput] = [*config.input, *config.output]
    for tensor in tensors:
        scalar = tensor.HasField("reshape")  # dims [1] that become none
        dims = [-1] if scalar else [-1, *tensor.dims]
        tensor.ClearField("reshape")
        tensor.ClearField("dims")
        tensor.dims.extend(dims)
