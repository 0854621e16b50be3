"""Functions that several features share."""

from collections.abc import Mapping
from typing import TypeAlias

from modserve.core.tensors import dtypes
from modserve.pb import inference as pb

AnyTensor: TypeAlias = pb.ModelInput | pb.ModelOutput
DATATYPES: Mapping[int, dtypes.Datatype] = {pb.DataType.Value(row.config_name): row for row in dtypes.ALL}
VALID_SIZE = "integer >= 1, or -1 to indicate a variable-size dimension"
