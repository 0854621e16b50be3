"""``modserve config MODEL_FILE``: a full config.pbtxt for a model file, from what its engine reports.

The text of a config.pbtxt with comments: the required fields, and optional sections, commented out.
"""

import asyncio
import logging
import sys
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from google.protobuf import text_format
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message

from modserve.backends.registry import BackendRegistry
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import ModserveError
from modserve.core.tensors.sample_data import Sizes
from modserve.models.loading.loader import Loader, LoaderOptions
from modserve.models.loading.one_file import StandaloneModel, model_file, repository_of
from modserve.pb import inference as pb
from modserve.repository.local import LocalRepository

from .check.model_check import findings
from .syntax import FAILED, UsageError, number_type, option, parser, print_error
from .terminal import stdout_as_stderr

_DEFAULTS = ("version_policy", "instance_group", "optimization", "platform")
"""Fields that the server fills in by itself, for any model."""
_WRITTEN = ("name", "backend", "default_model_filename", "max_batch_size", "input", "output", "dynamic_batching")
"""Fields with their own order; all others follow them."""

_BATCHING = """\
# Requests that wait are put together into batches. Without this block each runs by itself.
dynamic_batching {
  # How long a request may wait for others to share its batch, in microseconds; 0 by default.
  # max_queue_delay_microseconds: 100
  # Batch sizes at which to stop waiting for others.
  # preferred_batch_size: [ %d ]
}
"""
OPTIONAL = (
    (
        "How many batches run at the same time, and where: KIND_CPU, KIND_GPU, or KIND_AUTO for whatever there is.",
        "instance_group [ { count: 2 kind: KIND_AUTO } ]",
    ),
    (
        "Which of the versions are served: latest { num_versions: 2 }, all { }, or specific { versions: [ 1, 3 ] }.",
        "version_policy { latest { num_versions: 1 } }",
    ),
    (
        "Identical requests get the response of the first one, from a cache that the server has with --cache-config.",
        "response_cache { enable: true }",
    ),
)
"""Commented-out sections: the purpose of each, and the section."""
NO_BATCHING = (
    "Several requests at once, as one batch: only for models whose first dimension is the batch, with max_batch_size.",
    "dynamic_batching { max_queue_delay_microseconds: 100 }",
)


def format_config(config: pb.ModelConfig, file: StandaloneModel, default_filename: str) -> str:
    """Return the text of a complete configuration. `default_filename` is the backend's default file."""
    return "\n".join(_lines(config, file, default_filename)) + "\n"


def _lines(config: pb.ModelConfig, file: StandaloneModel, default_filename: str) -> Iterator[str]:
    batches = config.max_batch_size > 0
    yield f"# The configuration of model '{config.name}', made from {file.filename} by 'modserve config'."
    if not file.in_repository:
        yield f"# Its place in a model repository: {config.name}/config.pbtxt, beside {config.name}/1/{file.filename}"
    yield ""
    yield "# The model's name for clients: that of its folder."
    yield _field(config, "name")
    yield "# What runs the model."
    yield _field(config, "backend")
    if file.filename != default_filename:
        yield "# The model's file in the folder of each version."
        yield _field(config, "default_model_filename")
    yield "# The most rows of a batch: requests have a first dimension for them, which the dims below leave out."
    yield "# 0 is for models without such a dimension: dims are then the whole shape."
    yield f"max_batch_size: {config.max_batch_size}"
    yield ""
    yield "# -1 is a dimension of any size."
    for name, tensors in (("input", config.input), ("output", config.output)):
        yield f"{name} ["
        yield ",\n".join(_block(tensor) for tensor in tensors)
        yield "]"
    yield ""
    if batches and config.HasField("dynamic_batching"):
        yield _BATCHING % config.max_batch_size
    others = [field.name for field, _ in config.ListFields() if field.name not in (*_DEFAULTS, *_WRITTEN)]
    rest = _alone(config, *others)
    if text := text_format.MessageToString(rest, as_utf8=True):
        yield text
    for what, section in OPTIONAL if batches else (*OPTIONAL, NO_BATCHING):
        yield f"# {what}"
        yield f"# {section}"
        yield ""
    yield from _warm_up(config)


def _warm_up(config: pb.ModelConfig) -> Iterator[str]:
    """Yield a commented-out section with a sample of random data, if there are inputs."""
    if not config.input:
        return
    sizes = Sizes("", config.name)
    inputs = []
    for tensor in config.input:
        sample = pb.ModelWarmup()
        value = sample.inputs[tensor.name]
        value.data_type, value.random_data = tensor.data_type, True
        value.dims.extend(sizes.resolve(tensor.name, tuple(tensor.dims)))
        inputs.append(text_format.MessageToString(sample, as_utf8=True, as_one_line=True).strip())
    yield "# A sample that each instance runs before the model is ready; dims leave out the batch. In place of"
    yield "# random_data there may be zero_data, or input_data_file, for a file in the folder 'warmup' of the model."
    yield '# model_warmup { name: "random" batch_size: 1'
    yield from (f"  # {each}" for each in inputs[:-1])
    yield f"  # {inputs[-1]} }}"


def _field(config: pb.ModelConfig, name: str) -> str:
    return text_format.MessageToString(_alone(config, name), as_utf8=True).rstrip()


def _alone(config: pb.ModelConfig, *names: str) -> pb.ModelConfig:
    """Return a configuration with only some fields of another one."""
    part = pb.ModelConfig()
    FieldMask(paths=names).MergeMessage(config, part)
    return part


def _block(tensor: Message) -> str:
    text = text_format.MessageToString(tensor, as_utf8=True, use_short_repeated_primitives=True, as_one_line=False)
    return "  {\n" + "".join(f"    {line}\n" for line in text.splitlines()) + "  }"


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
    """Run the command and return the exit code."""
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
    """Configuration as a server with this model reads it, unless made for another `max_batch_size`."""


def make(file: StandaloneModel, max_batch_size: int | None = None) -> WrittenConfig:
    """Make the configuration of a file. Raises the load's errors, with the names of the file's own directory."""
    with repository_of(file) as directory, ThreadPoolExecutor(1) as executor:
        registry = BackendRegistry()
        loader = Loader(registry, LoaderOptions(cores=1), executor)
        message, config = asyncio.run(_complete(loader, directory, file, max_batch_size or 0))
    if max_batch_size == 0 and message.max_batch_size:
        _take_whole_shapes(message)
    return WrittenConfig(format_config(message, file, registry.get(message.backend).default_model_filename), config)


async def _complete(
    loader: Loader, directory: Path, file: StandaloneModel, max_batch_size: int
) -> tuple[pb.ModelConfig, ModelConfig]:
    """Load a file, and return the configuration that a server would make of it."""
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
    """Remove the batch dimension: dims then include the first dimension."""
    config.max_batch_size = 0
    config.ClearField("dynamic_batching")
    tensors: list[pb.ModelInput | pb.ModelOutput] = [*config.input, *config.output]
    for tensor in tensors:
        scalar = tensor.HasField("reshape")  # dims [1] that become none
        dims = [-1] if scalar else [-1, *tensor.dims]
        tensor.ClearField("reshape")
        tensor.ClearField("dims")
        tensor.dims.extend(dims)
