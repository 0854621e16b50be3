"""An inference request as its client sent it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias, final

from ..tenants import Tenant
from ..tensors.tensor import Tensor

ParameterValue: TypeAlias = bool | int | float | str


@final
class RequestForm:
    """Key of requests with the same outputs, and inputs of the same names, datatypes, shapes and sizes in bytes.

    A decoder that sees the same description again gives its requests the same form, so that a model checks only the
    first of them. A form is equal to itself only.
    """

    __slots__ = ()


@dataclass(init=False, slots=True, eq=False)
class InferenceRequest:
    """Decoded call. Tensors have the client's shapes; `core.requests.normalize` checks them against the model.

    `version` None stands for the latest ready one. `outputs` names the requested outputs, empty for all. `deadline_ns`
    is on the monotonic clock; after it the request is dropped wherever it waits; 0 = none. `timeout_ns` is the client's
    limit for the wait in a queue, and the queue's policy applies then; 0 = none. `tenant` is its sender; None if the
    server does not distinguish its users. Immutable, except `request_id`: the id of `core.requests.request_ids`, empty
    until it is needed.
    """

    model_name: str
    inputs: Mapping[str, Tensor]
    outputs: tuple[str, ...]
    version: int | None
    id: str
    parameters: Mapping[str, ParameterValue]
    deadline_ns: int
    timeout_ns: int
    form: RequestForm | None
    request_id: str
    tenant: Tenant | None

    def __init__(
        self,
        model_name: str,
        inputs: Mapping[str, Tensor],
        outputs: tuple[str, ...] = (),
        version: int | None = None,
        id: str = "",
        parameters: Mapping[str, ParameterValue] | None = None,
        deadline_ns: int = 0,
        timeout_ns: int = 0,
        form: RequestForm | None = None,
        request_id: str = "",
        tenant: Tenant | None = None,
    ) -> None:
        self.model_name = model_name
        self.inputs = inputs
        self.outputs = outputs
        self.version = version
        self.id = id
        self.parameters = {} if parameters is None else parameters
        self.deadline_ns = deadline_ns
        self.timeout_ns = timeout_ns
        self.form = form
        self.request_id = request_id
        self.tenant = tenant

    @property
    def label(self) -> str:
        """The prefix of messages about this request."""
        return label(self.id)


def timeout_ns(parameters: Mapping[str, ParameterValue]) -> int:
    """Return the ``timeout`` parameter, given in microseconds, in nanoseconds; 0 if there is none."""
    timeout = parameters.get("timeout")
    return timeout * 1000 if type(timeout) is int else 0


def label(request_id: str) -> str:
    """Return the prefix of messages about a request."""
    return f"[request id: {request_id or '<id_unknown>'}] "
