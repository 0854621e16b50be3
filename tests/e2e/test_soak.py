"""The soak of benchmarks/, for some seconds: mixed traffic over both protocols leaves nothing behind."""

import pytest

import soak

pytestmark = pytest.mark.slow

SECONDS = 10.0

SLOWER = 10.0
"""In a run this short, what else the machine does weighs more than what the server has become."""


def test_nothing_grows() -> None:
    samples, tally = soak.soak(SECONDS, SECONDS / 10, print)
    assert not tally.wrong
    assert tally.requests > 100
    assert tally.given_up
    assert not soak.growth(samples, SLOWER), samples
