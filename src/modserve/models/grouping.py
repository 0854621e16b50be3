"""Requests that must not share a batch though their shapes are equal: told apart when a model accepts them."""

from collections.abc import Callable
from typing import TypeAlias

from modserve.core.errors import invalid
from modserve.core.inflight import Inflight
from modserve.core.request import InferenceRequest
from modserve.core.response import ResponseSink

_VALUES = (str, int, float, bool, type(None))

Accept: TypeAlias = Callable[[InferenceRequest, ResponseSink, int], Inflight]
"""Checks a request that arrived at a time, as `core.normalize.Signature.accept`. Raises INVALID_ARG."""


def grouped(accept: Accept, key: Callable[[Inflight], object]) -> Accept:
    """Accept requests that only share a batch if `key` is the same for them, too."""

    def accept_grouped(request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        inflight = accept(request, sink, now_ns)
        inflight.shape_key = (inflight.shape_key, key(inflight))
        return inflight

    return accept_grouped


def by_parameters(names: tuple[str, ...], model: str) -> Callable[[Inflight], object]:
    """A key made of request parameters. It raises INVALID_ARG for values that parameters cannot have."""

    def key(inflight: Inflight) -> object:
        request = inflight.request
        values: list[object] = []
        for name in names:
            value: object = request.parameters.get(name)
            if not isinstance(value, _VALUES):
                raise invalid(
                    f"{request.label}parameter '{name}' of a request to model '{model}' is of type "
                    f"{type(value).__name__}, expected a string, a number or a boolean"
                )
            values.append((type(value), value))
        return tuple(values)

    return key
