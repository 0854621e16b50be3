"""The table of a version's states."""

import itertools

import pytest

from modserve.core.lifecycle import TRANSITIONS, UNLOADED, State, VersionState

ALLOWED = {
    (State.UNKNOWN, State.LOADING),
    (State.UNKNOWN, State.UNAVAILABLE),
    (State.LOADING, State.READY),
    (State.LOADING, State.UNAVAILABLE),
    (State.READY, State.UNLOADING),
    (State.READY, State.READY),
    (State.UNLOADING, State.UNAVAILABLE),
    (State.UNLOADING, State.LOADING),
    (State.UNAVAILABLE, State.LOADING),
}
PAIRS = list(itertools.product(State, State))


@pytest.mark.parametrize(("before", "after"), PAIRS, ids=[f"{a.name}-{b.name}" for a, b in PAIRS])
def test_every_pair_of_states(before: State, after: State) -> None:
    version = VersionState(before)
    if (before, after) in ALLOWED:
        assert version.advance(after, "why") == VersionState(after, "why")
        return
    with pytest.raises(RuntimeError, match=f"from {before.name} to {after.name}: this is a bug"):
        version.advance(after)


def test_every_state_has_a_row_and_can_be_reached() -> None:
    assert set(TRANSITIONS) == set(State)
    reached = {State.UNKNOWN}
    for _ in State:
        reached |= {after for before in reached for after in TRANSITIONS[before]}
    assert reached == set(State)


def test_states_are_spelled_as_the_repository_index_does() -> None:
    assert {state.value for state in State} == {"UNKNOWN", "LOADING", "READY", "UNLOADING", "UNAVAILABLE"}


def test_the_load_time_is_kept_and_the_reason_is_not() -> None:
    ready = VersionState().advance(State.LOADING, "on request").advance(State.READY, load_ns=5)
    assert ready == VersionState(State.READY, "", 5)
    assert ready.advance(State.UNLOADING).load_ns == 5


@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
@pytest.mark.parametrize("reason", ["", UNLOADED, f"{UNLOADED}, for 'a' is", "Internal: broken", "not unloaded"])
def test_all_but_ready_and_unloaded_versions_hold_up_readiness(state: State, reason: str) -> None:
    expected = state not in (State.READY, State.UNLOADING) and not reason.startswith("unloaded")
    assert VersionState(state, reason).holds_up_readiness is expected
