"""The configuration of warm-up as frozen values (``model_warmup`` of config.pbtxt)."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from ..tensors.dtypes import Datatype
from ..tensors.tensor import Shape

WARM_UP_FOLDER = "warmup"
"""Subdirectory of the model's directory, as in Triton, with the files that ``input_data_file`` names."""


class WarmUpMode(enum.Enum):
    """Selection of the models to warm up."""

    AUTO = "auto"
    """Every model. A model without ``model_warmup`` gets made-up data."""
    CONFIG = "config"
    """Models with ``model_warmup`` in their configuration."""
    OFF = "off"


class DataKind(enum.Enum):
    """Source of an input's data: the field that specifies it."""

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
    """Warm-up sample: `batch_size` requests with the same inputs, executed together, `count` times."""

    name: str
    batch_size: int
    count: int
    inputs: Mapping[str, WarmUpInput]
