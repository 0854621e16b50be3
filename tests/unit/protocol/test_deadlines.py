"""How long a client waits, by the headers of its request."""

import pytest

from modserve.core.errors import Code, ModserveError
from modserve.protocol.http import deadlines

MS = 1_000_000
OURS, GRPC, ENVOY = "x-request-timeout-ms", "grpc-timeout", "x-envoy-expected-rq-timeout-ms"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ((), 0),
        (((OURS, "250"),), 250 * MS),
        (((OURS, " 0.5 "),), MS // 2),
        (((ENVOY, "1500"),), 1500 * MS),
        (((GRPC, "3H"),), 3 * 3600 * 1000 * MS),
        (((GRPC, "1M"),), 60_000 * MS),
        (((GRPC, "2S"),), 2000 * MS),
        (((GRPC, "99999999m"),), 99_999_999 * MS),
        (((GRPC, "7u"),), 7000),
        (((GRPC, "7n"),), 7),
        (((OURS, "900"), (GRPC, "1S"), (ENVOY, "800")), 800 * MS),
    ],
)
def test_the_earliest_counts(headers: deadlines.Timeouts, expected: int) -> None:
    assert deadlines.deadline_ns(headers, 10) == (10 + expected if expected else 0)


MILLISECONDS = "expected milliseconds, as a number above 0"
UNITS = "expected 1 to 8 digits, above 0, and one of the units H, M, S, m, u, n"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        *(
            (name, value, MILLISECONDS)
            for name in (OURS, ENVOY)
            for value in ("", "0", "0.0", "-1", "1s", "1e3", "nan")
        ),
        *((GRPC, value, UNITS) for value in ("", "5", "0S", "S", "123456789S", "1s", "1.5S", "-1S", "\u0661S")),
    ],
)
def test_what_is_no_time(name: str, value: str, expected: str) -> None:
    with pytest.raises(ModserveError) as raised:
        deadlines.deadline_ns(((name, value),), 0)
    assert raised.value.code is Code.INVALID_ARG
    assert raised.value.message == f"invalid value '{value}' for the header '{name}', {expected}"


def test_other_headers_are_left_out() -> None:
    given = [("host", "x"), (GRPC, "1S"), ("timeout", "3"), (OURS, "5")]
    assert deadlines.timeouts(given) == ((GRPC, "1S"), (OURS, "5"))
