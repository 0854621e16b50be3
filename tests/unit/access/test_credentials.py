"""Keys among headers."""

import pytest

from modserve.access.credentials import missing, of_headers, secret_of
from modserve.core.errors import UnauthenticatedError


def shown(*headers: tuple[str, str]) -> bytes:
    return secret_of(of_headers([(name.encode(), value.encode()) for name, value in headers]))


@pytest.mark.parametrize(
    "headers",
    [
        [("authorization", "Bearer msk_1")],
        [("authorization", "bearer   msk_1 ")],
        [("x-api-key", " msk_1")],
        [("authorization", "Bearer msk_1"), ("host", "x"), ("x-api-key", "msk_1")],
        [("authorization", "Basic dXNlcjp4"), ("x-api-key", "msk_1")],
    ],
)
def test_where_a_key_may_be(headers: list[tuple[str, str]]) -> None:
    assert shown(*headers) == b"msk_1"


@pytest.mark.parametrize(
    ("headers", "complaint"),
    [
        ([], "this call needs a key"),
        ([("authorization", "Bearer a"), ("x-api-key", "b")], "the call has 2 keys that differ"),
        ([("authorization", "Bearer a"), ("authorization", "Bearer b")], "the call has 2 keys that differ"),
        ([("x-api-key", "")], "the call has an empty key"),
        ([("authorization", "Bearer ")], "the call has an empty key"),
        ([("authorization", "Basic dXNlcjp4")], "the Authorization header holds no 'Bearer KEY'"),
        ([("authorization", "msk_1")], "the Authorization header holds no 'Bearer KEY'"),
        ([("x-api-key", "x" * 20_000)], "the call's key has 20000 bytes, at most 16384 are possible"),
    ],
)
def test_what_is_wrong_with_a_key(headers: list[tuple[str, str]], complaint: str) -> None:
    with pytest.raises(UnauthenticatedError) as raised:
        shown(*headers)
    assert complaint in raised.value.message
    assert "msk_1" not in raised.value.message
    assert "dXNlcjp4" not in raised.value.message


def test_a_key_in_the_address_is_in_the_wrong_place() -> None:
    assert "a key in the address is not read" in missing(b"x=1&api_key=msk_1").message
    assert "this call needs a key" in missing(b"x=1").message
