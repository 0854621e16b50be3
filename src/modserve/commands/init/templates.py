"""The files of new models that have no model file yet. `@` stands for the model's name."""

from collections.abc import Callable, Mapping
from pathlib import PurePosixPath

Files = Mapping[PurePosixPath, str]
"""Contents by paths in the repository; a path that ends in a version's number is an empty folder."""

_CONFIG = """\
# The configuration of model '@'. All fields: docs/configuration.md of modserve, or Triton's documentation.

# The model's name for clients: that of its folder.
name: "@"
# What runs the model: Python runs 1/model.py, in a process of its own.
backend: "python"
# The most rows of a batch: requests have a first dimension for them, which the dims below leave out.
# 0 is for models without such a dimension: dims are then the whole shape.
max_batch_size: 8

# What a request has to bring. -1 is a dimension of any size.
input [
  {
    name: "%s"
    data_type: TYPE_FP32
    dims: [ -1 ]
  }
]
# What a response has.
output [
  {
    name: "%s"
    data_type: TYPE_FP32
    dims: [ -1 ]
  }
]

# Requests that wait are put together into batches. Without this block each runs by itself.
dynamic_batching {
  # How long a request may wait for others to share its batch, in microseconds; 0 by default.
  # max_queue_delay_microseconds: 100
}

# How many batches run at the same time: here, so many processes.
# instance_group [ { count: 2 kind: KIND_CPU } ]

# Which of the versions are served: latest { num_versions: 2 }, all { }, or specific { versions: [ 1, 3 ] }.
# version_policy { latest { num_versions: 1 } }
"""

_MODEL = '''\
"""%s"""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        """Called once for each instance, before it serves. `args` has model_config (JSON), model_name and more."""
        self.factor = np.float32(%s)

    def execute(self, requests):
        """Requests that run together: one response for each, in their order. What it raises fails all of them."""
        responses = []
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "%s").as_numpy()  # [rows, any]
            output = pb_utils.Tensor("%s", values * self.factor)
            responses.append(pb_utils.InferenceResponse([output]))
        return responses

    def finalize(self):
        """Called once, when the instance ends."""
'''

_FUNCTION = '''\
"""A function is a model: its parameters are the inputs, and type hints say the rest."""

from typing import Annotated

import modserve
import numpy as np
from numpy.typing import NDArray

Values = Annotated[NDArray[np.float32], modserve.Spec(shape=[-1])]  # without the batch; -1 is any length


@modserve.model(max_batch_size=8)
def predict(x: Values) -> Values:
    """Gets [rows, any], of several requests at once, and returns as many rows."""
    return x * 2
'''

_ENSEMBLE = """\
# From the request to the response through two models: an ensemble. What goes from one to the other stays inside
# the server. There is no model file: the folder 1 is empty.
#
#   x ──> @_first ──> hidden ──> @_second ──> y

# The model's name for clients: that of its folder.
name: "@"
platform: "ensemble"
# At most that of the models it is made of.
max_batch_size: 8

# What a request has to bring, and what a response has. Dims leave out the batch; -1 is a dimension of any size.
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]

# The maps go from a model's own names (keys) to names in the ensemble (values). A step runs when its inputs are there.
ensemble_scheduling {
  step [
    {
      model_name: "@_first"
      model_version: -1         # the latest that is ready
      input_map { key: "x" value: "x" }
      output_map { key: "hidden" value: "hidden" }
    },
    {
      model_name: "@_second"
      model_version: -1
      input_map { key: "hidden" value: "hidden" }
      output_map { key: "y" value: "y" }
    }
  ]
}
"""

_README = """\
# @

%s

Serve it, and call it:

```sh
modserve serve --model-repository DIR
%s
```

The response has `"data": %s`. `modserve check DIR` says what is wrong with it after a change.
"""
_CALL = (
    "curl localhost:8000/v2/models/@/infer \\\n"
    """  -d '{"inputs": [{"name": "%s", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}'"""
)


def call(name: str, tensor: str = "x") -> str:
    """Return the curl line that calls a model of these templates."""
    return (_CALL % tensor).replace("@", name)


def python(name: str) -> dict[PurePosixPath, str]:
    what = "A model in Python, as Triton's python backend takes it. It doubles what it gets: replace that."
    return {
        **_python_model(name, "x", "y", 2, what),
        PurePosixPath(name, "README.md"): _readme(
            name, "`1/model.py` is the model, `config.pbtxt` says what it takes."
        ),
    }


def function(name: str) -> dict[PurePosixPath, str]:
    what = "`1/model.py` has a decorated function, which needs no `config.pbtxt`. It doubles what it gets."
    return {
        PurePosixPath(name, "1", "model.py"): _FUNCTION,
        PurePosixPath(name, "README.md"): _readme(name, what),
    }


def ensemble(name: str) -> dict[PurePosixPath, str]:
    first, second = f"{name}_first", f"{name}_second"
    what = f"`config.pbtxt` sends a request through `{first}` and `{second}`, which double and halve what they get."
    return {
        PurePosixPath(name, "config.pbtxt"): _ENSEMBLE.replace("@", name),
        PurePosixPath(name, "1"): "",
        PurePosixPath(name, "README.md"): _readme(name, what, "1.0, 2.0, 3.0"),
        **_python_model(first, "x", "hidden", 2, f"The first step of '{name}'. It doubles what it gets: replace that."),
        **_python_model(second, "hidden", "y", 0.5, f"The second step of '{name}'. It halves what it gets."),
    }


def _python_model(name: str, source: str, result: str, factor: float, what: str) -> dict[PurePosixPath, str]:
    return {
        PurePosixPath(name, "config.pbtxt"): (_CONFIG % (source, result)).replace("@", name),
        PurePosixPath(name, "1", "model.py"): _MODEL % (what, factor, source, result),
    }


def _readme(name: str, what: str, data: str = "2.0, 4.0, 6.0") -> str:
    return (_README % (what, call(name), f"[{data}]")).replace("@", name)


KINDS: Mapping[str, Callable[[str], dict[PurePosixPath, str]]] = {
    "python": python,
    "function": function,
    "ensemble": ensemble,
}
