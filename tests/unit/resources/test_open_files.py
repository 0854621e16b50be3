"""How many connections fit into a limit on open files."""

import logging
import resource

import pytest

from modserve.resources import posix


@pytest.mark.parametrize(
    ("limit", "open_now", "expected"),
    [(64, 20, 12), (1024, 40, 738), (1_048_576, 40, 1_047_512), (20, 30, 1)],
    ids=["few", "usual", "many", "none"],
)
def test_some_are_left_for_others(limit: int, open_now: int, expected: int) -> None:
    assert posix.for_connections(limit, open_now) == expected


@pytest.mark.parametrize(("wished", "expected"), [(10, 10), (0, 12), (10_000, 12)])
def test_no_more_than_there_are(
    wished: int, expected: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(posix, "raise_limit", lambda: 64)
    monkeypatch.setattr(posix, "_open_now", lambda: 20)
    with caplog.at_level(logging.WARNING):
        assert posix.connections(wished) == expected
    assert ("allows only 12 HTTP connections, not 10000" in caplog.text) is (wished > 12)


def test_the_limit_is_raised_as_far_as_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(64, 4096)]

    def set_limits(which: int, pair: tuple[int, int]) -> None:
        assert which == resource.RLIMIT_NOFILE
        limits.append(pair)

    monkeypatch.setattr(resource, "getrlimit", lambda which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", set_limits)
    assert posix.raise_limit() == 4096
    assert limits == [(64, 4096), (4096, 4096)]
    assert posix.raise_limit() == 4096
    assert len(limits) == 2


def test_a_system_that_does_not_let_it_be_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(which: int, pair: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert posix.raise_limit() == 64
