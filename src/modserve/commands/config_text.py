"""The text of a config.pbtxt with comments: the required fields, and optional sections, commented out."""

from collections.abc import Iterator

from google.protobuf import text_format
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message

from modserve.core.tensors.sample_data import Sizes
from modserve.models.loading.one_file import StandaloneModel
from modserve.pb import inference as pb

_DEFAULTS = ("version_policy", "instance_group", "optimization", "platform")
"""What the server fills in by itself, whatever the model is."""
_WRITTEN = ("name", "backend", "default_model_filename", "max_batch_size", "input", "output", "dynamic_batching")
"""What has a place of its own below; all else comes behind it."""

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
"""Sections that are commented out: what each is for, and the section."""
NO_BATCHING = (
    "Several requests at once, as one batch: only for models whose first dimension is the batch, with max_batch_size.",
    "dynamic_batching { max_queue_delay_microseconds: 100 }",
)


def written(config: pb.ModelConfig, file: StandaloneModel, default_filename: str) -> str:
    """The text for a complete configuration. `default_filename` is what the backend looks for by itself."""
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
    """A section with a sample of random data, commented out, if there are inputs."""
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
    """A configuration with some fields of another one, and no others."""
    part = pb.ModelConfig()
    FieldMask(paths=names).MergeMessage(config, part)
    return part


def _block(tensor: Message) -> str:
    text = text_format.MessageToString(tensor, as_utf8=True, use_short_repeated_primitives=True, as_one_line=False)
    return "  {\n" + "".join(f"    {line}\n" for line in text.splitlines()) + "  }"
