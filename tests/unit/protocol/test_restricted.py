"""Which calls belong to which category, and what opens them."""

import pytest

from modserve.pb import health, orca
from modserve.pb import inference as pb
from modserve.protocol.restricted import (
    CATEGORIES,
    PATH_CATEGORY,
    RPC_CATEGORY,
    Restriction,
    grpc_restrictions,
    http_restrictions,
)


def test_every_rpc_has_one_category() -> None:
    assert set(RPC_CATEGORY) == {*pb.METHODS, *health.METHODS, *orca.METHODS}
    assert len(RPC_CATEGORY) == sum(len(calls.rpcs) for calls in CATEGORIES.values())


def test_every_path_has_one_category() -> None:
    assert len(PATH_CATEGORY) == sum(
        len(calls.paths) + len(calls.admin_paths) + 2 * len(calls.model_paths) + 3 * len(calls.v1_paths)
        for calls in CATEGORIES.values()
    )


KEY = Restriction("admin-Key", "s3cret", "API")


@pytest.mark.parametrize(
    ("headers", "granted"),
    [
        ([(b"admin-key", b"s3cret")], True),
        ([("admin-key", "s3cret")], True),
        ([(b"accept", b"*/*"), (b"admin-key", b"s3cret")], True),
        ([], False),
        ([(b"admin-key", b"")], False),
        ([(b"admin-key", b"s3cre")], False),
        ([(b"admin-key", b"s3crett")], False),
        ([(b"admin-key", b"S3CRET")], False),
        ([(b"admin-key", b"\xff")], False),
        ([(b"admin", b"s3cret")], False),
        ([(b"admin-key", b"wrong"), (b"admin-key", b"s3cret")], False),
        ([("admin-key", "s\u00e9cret")], False),
    ],
    ids=[
        "bytes",
        "text",
        "among others",
        "none",
        "empty",
        "shorter",
        "longer",
        "another case",
        "no text",
        "another name",
        "two",
        "not ASCII",
    ],
)
def test_what_opens_a_call(headers: list[tuple[str | bytes, str | bytes]], granted: bool) -> None:
    assert KEY.granted(headers) is granted


def test_what_is_said_to_the_others() -> None:
    given = {"health": ("admin-key", "x")}
    assert http_restrictions(given)["health"].refusal == "This API is restricted, expecting header 'admin-key'"
    assert grpc_restrictions(given)["health"].refusal == (
        "This protocol is restricted, expecting header 'triton-grpc-protocol-admin-key'"
    )
    assert grpc_restrictions(given)["health"].granted([("triton-grpc-protocol-admin-key", "x")])
    assert not grpc_restrictions(given)["health"].granted([("admin-key", "x")])
