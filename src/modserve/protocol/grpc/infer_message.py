"""A ``ModelInferRequest`` as plain values, from `request_reader` or from protobuf's message."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, final

from modserve.core.requests.request import ParameterValue, RequestForm
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Buffer, Shape
from modserve.core.version import parse_requested
from modserve.pb import inference as pb
from modserve.protocol.limits import LIMITS
from modserve.protocol.shared_memory import BYTE_SIZE, OFFSET, REGION

from .long_messages import Tensors

Parameter: TypeAlias = tuple[str, ParameterValue | None]
"""Name and value of the set field of an ``InferParameter``; an empty name and None if none is set."""

CLASSIFICATION: Final = "classification"
OF_INPUTS: Final = (REGION, OFFSET, BYTE_SIZE)
OF_OUTPUTS: Final = (*OF_INPUTS, CLASSIFICATION)
"""Tensor parameters with a meaning; clients may send others."""

NO_PARAMETERS: Final[dict[str, Parameter]] = {}


class GrpcInput(NamedTuple):
    """An input without its raw data."""

    name: str
    datatype: Datatype
    shape: Shape
    parameters: Mapping[str, Parameter]
    contents: Any
    """``InferTensorContents``, as a message or its bytes; None without contents."""


class GrpcOutput(NamedTuple):
    """A requested output."""

    name: str
    parameters: Mapping[str, Parameter]


@final
class InferHead:
    """Inputs and requested outputs. Repeats from request to request; only its `form` changes.

    For more tensors than `LIMITS` allows, only their number is kept.
    """

    __slots__ = (
        "bare_inputs",
        "bare_outputs",
        "form",
        "form_sizes",
        "input_count",
        "inputs",
        "lasting",
        "output_count",
        "output_names",
        "outputs",
    )

    def __init__(
        self, inputs: tuple[GrpcInput, ...], outputs: tuple[GrpcOutput, ...], input_count: int, output_count: int
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.input_count = input_count
        self.output_count = output_count
        names: set[str] = set()
        bare = True
        for sent in inputs:
            names.add(sent.name)
            if sent.parameters or sent.contents is not None or len(sent.shape) > LIMITS.rank:
                bare = False
        self.bare_inputs = bare and len(names) == input_count
        """True if the inputs accept any raw data in sequence: none can be invalid on its own."""
        output_names: list[str] = []
        bare = True
        for requested in outputs:
            output_names.append(requested.name)
            if requested.parameters:
                bare = False
        self.output_names: tuple[str, ...] = tuple(output_names)
        self.bare_outputs = bare
        self.lasting = False
        """True if it is cached, and shared with other requests."""
        self.form: RequestForm | None = None
        """Form of requests with this head and raw tensors of the sizes `form_sizes`."""
        self.form_sizes: list[int] = []

    def form_of(self, raws: Sequence[Buffer]) -> RequestForm | None:
        """Return the form of requests with bare inputs and these raw tensors; reuses the last one if it matches."""
        if not self.lasting:
            return None
        sizes = list(map(len, raws))
        form = self.form
        if form is None or sizes != self.form_sizes:
            form = self.form = RequestForm()
            self.form_sizes = sizes
        return form

    @property
    def typed(self) -> bool:
        """True if any input contains its own elements."""
        return any(each.contents is not None for each in self.inputs)


@final
class InferMessage:
    """Content of a request as plain values, with no checks beyond protobuf's."""

    __slots__ = ("head", "id", "model_name", "model_version", "parameter_count", "parameters", "raws", "short", "split")

    def __init__(
        self,
        model_name: str,
        model_version: str,
        id: str,
        parameters: Mapping[str, Parameter],
        head: InferHead,
        raws: Sequence[Buffer],
        short: bool,
    ) -> None:
        self.model_name = model_name
        self.model_version = model_version
        self.id = id
        self.parameters = parameters
        self.parameter_count = len(parameters)
        """Number of parameters; above the limit in `LIMITS`, `parameters` is empty."""
        self.head = head
        self.raws = raws
        """``raw_input_contents``; longer ones are views of the message."""
        self.short = short
        """True if decoding takes no time, regardless of the elements' encoding."""
        self.split = False
        """True if the contents of its inputs are bytes that protobuf has not parsed."""

    def parse_version(self) -> int | None:
        """Return the requested version. Raises as `parse_requested` does."""
        return parse_requested(self.model_version) if self.model_version else None


def from_protobuf(message: pb.ModelInferRequest, tensors: Tensors | None = None) -> InferMessage:
    """Convert a message to plain values. `tensors`: tensors of a split message."""
    parameters = message.parameters
    count = len(parameters)
    values = {name: _parameter(parameters[name]) for name in parameters} if 0 < count <= LIMITS.parameters else {}
    raws: Sequence[Buffer] = message.raw_input_contents if tensors is None else tensors.raws
    plain = InferMessage(
        message.model_name, message.model_version, message.id, values, head_of(message, tensors), raws, tensors is None
    )
    plain.parameter_count = count
    plain.split = tensors is not None
    return plain


def head_of(message: pb.ModelInferRequest, tensors: Tensors | None = None) -> InferHead:
    """Return the tensor descriptions of `message`, without raw data."""
    input_count, output_count = len(message.inputs), len(message.outputs)
    inputs: list[GrpcInput] = []
    outputs: list[GrpcOutput] = []
    if input_count <= LIMITS.tensors:
        for position, tensor in enumerate(message.inputs):
            contents: Any = None
            if tensors is not None:
                contents = tensors.contents[position]
            elif tensor.HasField("contents"):
                contents = tensor.contents
            datatype = dtypes.BY_NAME.get(tensor.datatype, dtypes.INVALID)
            values = _parameters(tensor.parameters, OF_INPUTS)
            inputs.append(GrpcInput(tensor.name, datatype, tuple(tensor.shape), values, contents))
    if output_count <= LIMITS.tensors:
        outputs += [GrpcOutput(output.name, _parameters(output.parameters, OF_OUTPUTS)) for output in message.outputs]
    return InferHead(tuple(inputs), tuple(outputs), input_count, output_count)


def _parameters(messages: Mapping[str, pb.InferParameter], names: tuple[str, ...]) -> Mapping[str, Parameter]:
    if not messages:
        return NO_PARAMETERS
    return {name: _parameter(messages[name]) for name in names if name in messages}


def _parameter(message: pb.InferParameter) -> Parameter:
    choice = message.WhichOneof("parameter_choice")
    return ("", None) if choice is None else (choice, getattr(message, choice))
