"""The one table that spells error codes on both wires."""

import grpc
import pytest

from modserve.core.errors import Code
from modserve.protocol.failures import STATUS

TABLE = [
    (Code.UNKNOWN, 400, grpc.StatusCode.UNKNOWN),
    (Code.INTERNAL, 500, grpc.StatusCode.INTERNAL),
    (Code.NOT_FOUND, 404, grpc.StatusCode.NOT_FOUND),
    (Code.INVALID_ARG, 400, grpc.StatusCode.INVALID_ARGUMENT),
    (Code.UNAVAILABLE, 503, grpc.StatusCode.UNAVAILABLE),
    (Code.UNSUPPORTED, 501, grpc.StatusCode.UNIMPLEMENTED),
    (Code.ALREADY_EXISTS, 400, grpc.StatusCode.ALREADY_EXISTS),
    (Code.CANCELLED, 400, grpc.StatusCode.CANCELLED),
]


@pytest.mark.parametrize(("code", "http", "rpc"), TABLE, ids=[code.name for code, *_ in TABLE])
def test_each_code_has_triton_s_status_on_both_wires(code: Code, http: int, rpc: grpc.StatusCode) -> None:
    assert STATUS[code].http == http
    assert STATUS[code].grpc == rpc.value[0]


def test_every_code_is_in_the_table() -> None:
    assert set(STATUS) == set(Code) == {code for code, *_ in TABLE}
