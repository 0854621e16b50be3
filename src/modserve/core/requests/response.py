"""A response, and the sinks that receive it."""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias, cast

from mypy_extensions import mypyc_attr

from ..errors import ModserveError, forget_frames, from_exception, internal, unsupported
from ..tensors.tensor import Tensor
from ..version import ModelId
from .request import ParameterValue

_log = logging.getLogger(__name__)


@dataclass(init=False, slots=True, eq=False)
class InferenceResponse:
    """Response of a model. `outputs` are in the order of the request, or of the configuration.

    Ensembles set `skipped` and `waited_ns` for an outer ensemble: the requested outputs that no step produced because
    of conditions, and the total queue time of the consecutive steps behind this response. Immutable.
    """

    model_name: str
    model_version: int
    outputs: Mapping[str, Tensor]
    id: str
    parameters: Mapping[str, ParameterValue]
    skipped: frozenset[str]
    waited_ns: int

    def __init__(
        self,
        model_name: str,
        model_version: int,
        outputs: Mapping[str, Tensor],
        id: str = "",
        parameters: Mapping[str, ParameterValue] | None = None,
        skipped: frozenset[str] = frozenset(),
        waited_ns: int = 0,
    ) -> None:
        self.model_name = model_name
        self.model_version = model_version
        self.outputs = outputs
        self.id = id
        self.parameters = {} if parameters is None else parameters
        self.skipped = skipped
        self.waited_ns = waited_ns

    def elements(self, names: Iterable[str]) -> int:
        """Return the total number of elements in the outputs with these names."""
        return sum(math.prod(self.outputs[name].shape) for name in names)

    @property
    def size(self) -> int:
        """Approximate bytes of its tensors."""
        return sum(tensor.size for tensor in self.outputs.values())


Outcome: TypeAlias = InferenceResponse | ModserveError | None
"""Response, failure, or None for the end of a request's responses if it comes alone."""


def bare_end(model: ModelId, request_id: str) -> InferenceResponse:
    """Return a response without outputs, which tells a client that no more responses follow."""
    return InferenceResponse(model.name, model.version, {}, request_id)


class ResponseSink(Protocol):
    """Receiver of one request's outcomes, always on the event loop's thread."""

    def settle(self, outcome: Outcome, final: bool) -> None:
        """Receive each outcome in order, the last one with `final` set; None is always final.

        Models that are not decoupled have exactly one outcome. Must not block. If it raises, it is called once more,
        with an error as the last outcome.
        """


class _Nobody:
    """The sink of a request that is settled: it ignores everything."""

    __slots__ = ()

    def settle(self, outcome: Outcome, final: bool) -> None: ...


NOBODY: ResponseSink = _Nobody()


def hand_over(sink: ResponseSink, outcome: Outcome, final: bool) -> bool:
    """Give a sink an outcome. Never raises; False if the sink failed, and got an error as its last outcome instead."""
    try:
        sink.settle(outcome, final)
    except Exception as error:  # must not reach the engine's other requests
        _log.exception("the receiver of a response failed")
        failure = from_exception(error, "failed to deliver the response")
        forget_frames(error)
        try:
            sink.settle(failure, True)
        except Exception:
            _log.exception("the receiver of a response failed to take an error, too")
        return False
    return True


def single_outcome(
    held: InferenceResponse | None, outcome: Outcome, final: bool
) -> InferenceResponse | ModserveError | None:
    """Return the result of a call with one response, for any model. None: hold `outcome` until the end.

    `held` is the possible result so far. A failure after a response that was not final replaces it.
    """
    if outcome is None:
        return held or internal("the model sent no response")
    if isinstance(outcome, InferenceResponse):
        if held is not None:
            return unsupported(
                "this call doesn't support models with decoupled transaction policy that respond more than once, "
                f"as model '{outcome.model_name}' did; use ModelStreamInfer over gRPC, infer_stream or "
                "generate_stream over HTTP"
            )
        if not final:
            return None
    return outcome


@mypyc_attr(allow_interpreted_subclasses=True)
class SingleResponseSink(ABC):
    """A sink for calls with one response: it expects exactly one from the model, whether that is decoupled or not.

    Subclasses say what happens with the response in `deliver`, which is called until it does not raise.
    """

    __slots__ = ("_delivered", "_held")

    def __init__(self) -> None:
        self._held: InferenceResponse | None = None
        self._delivered = False

    def settle(self, outcome: Outcome, final: bool) -> None:
        if self._delivered:
            return
        delivery = single_outcome(self._held, outcome, final)
        if delivery is None:
            self._held = cast(InferenceResponse, outcome)
            return
        self._delivered = True
        self._held = None
        try:
            self.deliver(delivery)
        except Exception:
            self._delivered = False  # an error comes in its place
            raise

    @abstractmethod
    def deliver(self, outcome: InferenceResponse | ModserveError) -> None: ...
