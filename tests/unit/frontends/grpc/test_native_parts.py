"""Parts of the gRPC server of our own: deadlines, texts of statuses, and what the options become."""

from dataclasses import replace
from typing import Any, get_args

import pytest

from http2_client import Loop
from modserve.frontends.grpc import heads
from modserve.frontends.grpc.deadlines import Deadlines
from modserve.frontends.grpc.listener import CODINGS, policies
from modserve.frontends.http2.limits import LIMITS
from modserve.frontends.http2.policies import Policies
from modserve.frontends.http2.port import make_settings
from modserve.settings import GrpcSettings
from modserve.settings.setting_types import Compression

MS = 1_000_000


class Call:
    def __init__(self) -> None:
        self.late = 0

    def on_deadline(self) -> None:
        self.late += 1


@pytest.fixture
def deadlines() -> Deadlines:
    loop: Any = Loop()
    return Deadlines(loop)


def test_deadlines_pass_in_their_order(deadlines: Deadlines) -> None:
    calls = [Call() for _ in range(5)]
    for number, call in enumerate(calls):
        deadlines.add(call, number * 100 * MS)
    deadlines.pass_by(250 * MS)
    assert [call.late for call in calls] == [1, 1, 1, 0, 0]
    deadlines.pass_by(10_000 * MS)
    assert [call.late for call in calls] == [1] * 5
    assert len(deadlines) == 0


def test_no_call_ends_early(deadlines: Deadlines) -> None:
    call = Call()
    deadlines.add(call, 100 * MS)
    deadlines.pass_by(100 * MS - 1)
    assert not call.late
    deadlines.pass_by(108 * MS)
    assert call.late


def test_a_call_that_is_over_leaves_nothing(deadlines: Deadlines) -> None:
    first, second = Call(), Call()
    numbers = [deadlines.add(call, 100 * MS) for call in (first, second)]
    deadlines.remove(first, numbers[0])
    deadlines.remove(first, numbers[0])
    assert len(deadlines) == 1
    deadlines.remove(second, numbers[1])
    assert len(deadlines) == 0
    deadlines.pass_by(200 * MS)
    assert first.late == second.late == 0


def test_a_call_may_end_another(deadlines: Deadlines) -> None:
    other = Call()

    class Ending(Call):
        def on_deadline(self) -> None:
            deadlines.remove(other, number)

    deadlines.add(Ending(), 100 * MS)
    number = deadlines.add(other, 200 * MS)
    deadlines.pass_by(300 * MS)
    assert other.late == 0


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ("", b""),
        ("plain (text), 'quoted' ~!", b"plain (text), 'quoted' ~!"),
        ("100%", b"100%25"),
        ("a\nb\x00\x7f", b"a%0Ab%00%7F"),
        ("\u00fc\u4e2d\U0001f600", b"%C3%BC%E4%B8%AD%F0%9F%98%80"),
        ("\ud800", b"?"),
    ],
)
def test_texts_of_statuses(text: str, encoded: bytes) -> None:
    """Printable ASCII stays (grpc/grpc, doc/PROTOCOL-HTTP2.md, Status-Message)."""
    assert heads.message_text(text) == encoded


def test_policies_by_default_are_those_of_the_options() -> None:
    assert policies(GrpcSettings()) == Policies()


def test_policies_by_the_options() -> None:
    options = replace(
        GrpcSettings(),
        keepalive_time=1,
        keepalive_timeout=2,
        keepalive_permit_without_calls=True,
        http2_max_pings_without_data=3,
        http2_min_recv_ping_interval_without_data=4,
        http2_max_ping_strikes=5,
        max_connection_age=6,
        max_connection_age_grace=7,
    )
    made = policies(options)
    assert made == Policies(0.001, 0.002, True, 3, 0.004, 7200.0, 5, 0.006, 0.007)
    assert 0 < made.tick <= 0.02


def test_every_level_has_its_codings() -> None:
    assert set(CODINGS) == set(get_args(get_args(Compression)[0]))


def test_any_number_of_streams_is_not_announced() -> None:
    assert make_settings(replace(LIMITS, streams=5))[3] == 5
    assert 3 not in make_settings(replace(LIMITS, streams=0))
