"""An answer, and who takes it."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from .errors import ModserveError, internal, unsupported
from .request import ParameterValue
from .tensor import Tensor
from .version import ModelId


@dataclass(frozen=True, slots=True, eq=False)
class InferenceResponse:
    """One answer. `outputs` are in the order in which the client asked, or that of the configuration.

    Of ensembles, an ensemble around them is also told what was `skipped`, outputs that were asked for and that no step
    gave because of conditions, and how long the steps behind this answer waited in queues, one after the other.
    """

    model_name: str
    model_version: int
    outputs: Mapping[str, Tensor]
    id: str = ""
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    skipped: frozenset[str] = frozenset()
    waited_ns: int = 0

    def elements(self, names: Iterable[str]) -> int:
        """How many elements the outputs with these names have together."""
        return sum(math.prod(self.outputs[name].shape) for name in names)

    @property
    def size(self) -> int:
        """Bytes that its tensors hold, about."""
        return sum(tensor.size for tensor in self.outputs.values())


def bare_end(model: ModelId, request_id: str) -> InferenceResponse:
    """What tells of the end of a request's responses where that comes without one: it has no outputs."""
    return InferenceResponse(model.name, model.version, {}, request_id)


class ResponseSink(Protocol):
    """Takes the answers of one request, always on the event loop's thread.

    `respond` and `fail` are called in the order of the answers, the last time with `final` set; or `complete` says that
    no more will come. Nothing follows either. Models that are not decoupled give exactly one answer, the final one.
    None of these may block or raise.
    """

    def respond(self, response: InferenceResponse, final: bool) -> None: ...

    def fail(self, error: ModserveError, final: bool) -> None: ...

    def complete(self) -> None: ...


class _Nobody:
    """The sink of a request that is settled: nothing more is said to it."""

    __slots__ = ()

    def respond(self, response: InferenceResponse, final: bool) -> None:
        pass

    def fail(self, error: ModserveError, final: bool) -> None:
        pass

    def complete(self) -> None:
        pass


NOBODY: ResponseSink = _Nobody()


class OneAnswer(ABC):
    """A sink for calls that have one answer: takes exactly one from the model, whether it is decoupled or not.

    Subclasses say what happens with it in `settle`, which is called once. A failure that is told after the answer has
    come counts.
    """

    __slots__ = ("_held", "_settled")

    def __init__(self) -> None:
        self._held: InferenceResponse | None = None
        self._settled = False

    def respond(self, response: InferenceResponse, final: bool) -> None:
        if final and self._held is None:
            self._settle(response)
        elif self._held is None:
            self._held = response
        else:
            self._settle(_more_than_one(response.model_name))

    def fail(self, error: ModserveError, final: bool) -> None:
        self._settle(error)

    def complete(self) -> None:
        self._settle(self._held or internal("the model gave no response"))

    def _settle(self, outcome: InferenceResponse | ModserveError) -> None:
        if not self._settled:
            self._settled = True
            self._held = None
            self.settle(outcome)

    @abstractmethod
    def settle(self, outcome: InferenceResponse | ModserveError) -> None: ...


def _more_than_one(model_name: str) -> ModserveError:
    return unsupported(
        f"this call doesn't support models with decoupled transaction policy that respond more than once, as model "
        f"'{model_name}' did; use ModelStreamInfer over gRPC, infer_stream or generate_stream over HTTP"
    )
