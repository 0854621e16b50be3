"""The number of the model's inputs, and those inputs and outputs among them that are not the clients'."""

from collections.abc import Set

from modserve.core.model_config import ModelDescription
from modserve.pb import inference as pb

from ..text.problems import Faults
from . import padding, ragged, sequences
from .feature import Feature


def server_inputs(message: pb.ModelConfig) -> Set[str]:
    """The names of the inputs that the server makes: controls, states and batch inputs."""
    return sequences.inputs(message).keys() | ragged.targets(message)


def _compare(message: pb.ModelConfig, description: ModelDescription, shapes: bool) -> Faults:
    """Triton counts no optional inputs; one for each batch input, kind of control, and state; and controls come first.

    It knows neither inputs that the model itself calls optional, which may be absent, nor masks that the server makes.
    """
    if not sequences.controls(message) <= {tensor.name for tensor in description.inputs}:
        return
    configured = {tensor.name for tensor in message.input} | server_inputs(message)
    optional = {tensor.name for tensor in description.inputs if tensor.optional}
    required = [tensor.name for tensor in description.inputs if not tensor.optional]
    uncounted = {tensor.name for tensor in message.input if tensor.optional} - optional - {padding.mask(message)}
    expected = len(message.input) - len(uncounted) + len(message.batch_input) + sequences.count_inputs(message)
    if expected + len(optional - configured) == len(description.inputs):
        return
    text = (
        f"unable to load model '{message.name}', configuration expects {expected} inputs, model provides "
        f"{len(description.inputs)}"
    )
    causes = {
        "missing in the configuration": [name for name in required if name not in configured],
        "optional in the configuration only": [name for name in required if name in uncounted],
    }
    yield ("input",), text + "".join(f"; {cause}: {', '.join(names)}" for cause, names in causes.items() if names)


FEATURE = Feature(compare=_compare)
