"""Requests that must not share a batch."""

from typing import Any

import pytest

from modserve.core.errors import Code, ModserveError
from modserve.core.requests.normalize import Signature
from modserve.models.loading.assembly import by_parameters, group_by
from modserve.models.serving.opened_model import Accept
from modserve.testing import RecordingSink, config, inflight, request


def test_keys_are_added_from_inside_out() -> None:
    accept: Accept = Signature(config()).accept
    accept = group_by(accept, lambda entry: entry.batch_size)
    accept = group_by(accept, lambda entry: "outer")
    sink = RecordingSink()
    entry = accept(request(), sink, 7)
    assert (entry.shape_key, entry.sink, entry.request_start_ns) == (((None, 1), "outer"), sink, 7)


def keyed(**parameters: Any) -> object:
    entry = inflight()
    entry.request.parameters.update(parameters)  # type: ignore[attr-defined]
    return by_parameters(("a", "b"), "model")(entry)


def test_values_of_different_types_differ() -> None:
    keys = [keyed(a=value) for value in (1, 1.0, True, "1", None)] + [keyed(b=1), keyed(a=1, b=1)]
    assert len(set(keys)) == len(keys)
    assert keyed() == keyed(a=None, c=3)


def test_values_that_parameters_cannot_have_are_refused() -> None:
    with pytest.raises(ModserveError, match="parameter 'b' of a request to model 'model' is of type list") as caught:
        keyed(b=[1])
    assert caught.value.code is Code.INVALID_ARG
