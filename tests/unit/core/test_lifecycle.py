"""The table of a version's states."""

import itertools

import pytest

from modserve.core.lifecycle import TRANSITIONS, UNLOADED, LifecycleState, VersionState

ALLOWED = {
    (LifecycleState.UNKNOWN, LifecycleState.LOADING),
    (LifecycleState.UNKNOWN, LifecycleState.UNAVAILABLE),
    (LifecycleState.LOADING, LifecycleState.READY),
    (LifecycleState.LOADING, LifecycleState.UNAVAILABLE),
    (LifecycleState.READY, LifecycleState.UNLOADING),
    (LifecycleState.READY, LifecycleState.READY),
    (LifecycleState.UNLOADING, LifecycleState.UNAVAILABLE),
    (LifecycleState.UNLOADING, LifecycleState.LOADING),
    (LifecycleState.UNAVAILABLE, LifecycleState.LOADING),
}
PAIRS = list(itertools.product(LifecycleState, LifecycleState))


@pytest.mark.parametrize(("before", "after"), PAIRS, ids=[f"{a.name}-{b.name}" for a, b in PAIRS])
def test_every_pair_of_states(before: LifecycleState, after: LifecycleState) -> None:
    version = VersionState(before)
    if (before, after) in ALLOWED:
        assert version.advance(after, "why") == VersionState(after, "why")
        return
    with pytest.raises(RuntimeError, match=f"from {before.name} to {after.name}: this is a bug"):
        version.advance(after)


def test_every_state_has_a_row_and_can_be_reached() -> None:
    assert set(TRANSITIONS) == set(LifecycleState)
    reached = {LifecycleState.UNKNOWN}
    for _ in LifecycleState:
        reached |= {after for before in reached for after in TRANSITIONS[before]}
    assert reached == set(LifecycleState)


def test_states_are_spelled_as_the_repository_index_does() -> None:
    assert {state.value for state in LifecycleState} == {"UNKNOWN", "LOADING", "READY", "UNLOADING", "UNAVAILABLE"}


def test_the_load_time_is_kept_and_the_reason_is_not() -> None:
    ready = VersionState().advance(LifecycleState.LOADING, "on request").advance(LifecycleState.READY, load_ns=5)
    assert ready == VersionState(LifecycleState.READY, "", 5)
    assert ready.advance(LifecycleState.UNLOADING).load_ns == 5


@pytest.mark.parametrize("state", LifecycleState, ids=lambda state: state.name)
@pytest.mark.parametrize("reason", ["", UNLOADED, f"{UNLOADED}, for 'a' is", "Internal: broken", "not unloaded"])
def test_all_but_ready_and_unloaded_versions_hold_up_readiness(state: LifecycleState, reason: str) -> None:
    expected = state not in (LifecycleState.READY, LifecycleState.UNLOADING) and not reason.startswith("unloaded")
    assert VersionState(state, reason).holds_up_readiness is expected
