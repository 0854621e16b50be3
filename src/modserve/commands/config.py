"""``modserve config MODEL_FILE``: a full config.pbtxt for a model file, from what its engine reports."""

import asyncio
import logging
import sys
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from modserve.backends.registry import BackendRegistry
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import ModserveError
from modserve.models.loading.loader import Loader, LoaderOptions
from modserve.models.loading.one_file import StandaloneModel, model_file, repository_of
from modserve.pb import inference as pb
from modserve.repository.local import LocalRepository

from .check.model_check import findings
from .config_text import written
from .stdout import stdout_as_stderr
from .syntax import FAILED, UsageError, number_type, option, parser, print_error

PARSER = parser(
    "config",
    "Loads a model file, or a folder such as a SavedModel, and writes a complete config.pbtxt for it to\n"
    "standard output: name, backend, inputs and outputs as the engine describes them, and common\n"
    "options, commented out and explained.",
    """\
  modserve config resnet50.onnx
  modserve config model_repository/resnet/1/model.onnx -o model_repository/resnet/config.pbtxt""",
    "0 written, 1 the model does not load, 2 wrong command line or file",
)
PARSER.add_argument("file", metavar="MODEL_FILE", type=Path, help="The model file or folder.")
option(
    PARSER,
    "--max-batch-size N",
    "Maximum number of rows per batch; 0: no batching. [default: what a server uses without a configuration: 4 if "
    "the first dimension of every tensor is variable, otherwise 0]",
    type=number_type("a number of 0 or more", lambda value: value.is_integer() and 0 <= value < 1e9),
)
option(PARSER, "-o, --output FILE", "Write to FILE, which must not exist.", type=Path)


def work(options: Namespace) -> int:
    """Runs the command; returns the exit code."""
    output: Path | None = options.output
    if output is not None and output.exists():
        raise UsageError(f"'{output}' already exists; remove it, or name another file")
    try:
        file = model_file(options.file, BackendRegistry().names)
    except ModserveError as error:
        raise UsageError(error.message) from None
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        with stdout_as_stderr():
            text = make(file, None if options.max_batch_size is None else int(options.max_batch_size)).text
    except ModserveError as error:
        for finding in findings(error, str(options.file)):
            print_error(f"{options.file}: {finding.text}")
            print(finding.advice, end="\n" if finding.advice else "", file=sys.stderr)
        return FAILED
    if output is None:
        print(text, end="")
        return 0
    try:
        output.write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"cannot write '{output}': {error.strerror}") from None
    return 0


class WrittenConfig(NamedTuple):
    text: str
    config: ModelConfig
    """As a server with this model reads it, unless it was made for another `max_batch_size`."""


def make(file: StandaloneModel, max_batch_size: int | None = None) -> WrittenConfig:
    """The configuration of a file. Raises what the load raises, with the names of the file's own folder."""
    with repository_of(file) as directory, ThreadPoolExecutor(1) as executor:
        registry = BackendRegistry()
        loader = Loader(registry, LoaderOptions(cores=1), executor)
        message, config = asyncio.run(_completed(loader, directory, file, max_batch_size or 0))
    if max_batch_size == 0 and message.max_batch_size:
        _take_whole_shapes(message)
    return WrittenConfig(written(message, file, registry.get(message.backend).default_model_filename), config)


async def _completed(
    loader: Loader, directory: Path, file: StandaloneModel, max_batch_size: int
) -> tuple[pb.ModelConfig, ModelConfig]:
    """The configuration that a server would make of a file, by loading it."""
    content = file.config(measured=False) + str(pb.ModelConfig(max_batch_size=max_batch_size)).encode()
    listing = replace(LocalRepository(directory, outside_links=True).read(file.name), content=content)
    blueprint = await loader.inspect(listing)
    servable = await blueprint.load(listing.path, 1)
    try:
        return pb.ModelConfig.FromString(servable.config_message), servable.config
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
