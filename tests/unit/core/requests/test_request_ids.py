"""Ids of requests: whose are used, and that others are made once."""

import pytest

from modserve.core.requests import request_ids
from modserve.core.requests.request import InferenceRequest


@pytest.mark.parametrize("value", ["a", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "x" * 128, "!~{}"])
def test_a_client_s_id_is_used(value: str) -> None:
    assert request_ids.choose(request_ids.check(value)) == value


@pytest.mark.parametrize("value", ["", "a b", "x" * 129, "a\n", "a\r\nSet-Cookie: b", "é", "\x7f", "\x00"])
def test_what_is_no_id_is_replaced(value: str) -> None:
    chosen = [request_ids.choose(request_ids.check(value)) for _ in range(2)]
    assert chosen[0] != chosen[1]
    assert all(request_ids.check(each) == each != value for each in chosen)


def test_a_request_gets_one_id() -> None:
    request = InferenceRequest("m", {})
    assert request.request_id == ""
    assert request_ids.of(request) == request_ids.of(request) == request.request_id != ""


def test_the_ids_of_a_batch() -> None:
    requests = [InferenceRequest("m", {}, request_id=str(number)) for number in range(10)]
    assert request_ids.list_ids(requests[:2]) == "0, 1"
    assert request_ids.list_ids(requests) == "0, 1, 2, 3, 4, 5, 6, 7 and 2 more"
