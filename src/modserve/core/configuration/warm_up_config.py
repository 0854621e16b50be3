"""The configuration of warm-up as frozen values (``model_warmup`` of config.pbtxt)."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from ..tensors.dtypes import Datatype
from ..tensors.tensor import Shape

WARM_UP_FOLDER = "warmup"
"""In the model's directory, as in Triton: the files that ``input_data_file`` names."""


class WarmUpMode(enum.Enum):
    """Which models are warmed up."""

    AUTO = "auto"
    """All: those that do not say with what get data that is made up."""
    CONFIG = "config"
    """Those that have ``model_warmup`` in their configuration."""
    OFF = "off"


class DataKind(enum.Enum):
    """Where the data of an input comes from: the field that says it."""

    ZERO = "zero_data"
    RANDOM = "random_data"
    FILE = "input_data_file"


@dataclass(frozen=True, slots=True)
class WarmUpInput:
    """The data of an input. `dims` leave out the batch dimension; `file` is below `WARM_UP_FOLDER`."""

    datatype: Datatype
    dims: Shape
    kind: DataKind
    file: str = ""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """One sample: `batch_size` requests with the same inputs, which are executed together, `count` times."""

    name: str
    batch_size: int
    count: int
    inputs: Mapping[str, WarmUpInput]
