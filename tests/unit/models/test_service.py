"""The states of a model in service: every state and every event."""

from itertools import product

import pytest

from modserve.models.serving.service import TRANSITIONS, Service, ServiceEvent, after

OPEN, STRANDED, DRAINING, BOTH, CLOSED = Service

STEPS = {
    ServiceEvent.LOST: {OPEN: STRANDED, STRANDED: STRANDED, DRAINING: BOTH, BOTH: BOTH, CLOSED: CLOSED},
    ServiceEvent.HEALTHY: {OPEN: OPEN, STRANDED: OPEN, DRAINING: DRAINING, BOTH: DRAINING, CLOSED: CLOSED},
    ServiceEvent.CHANGE: {OPEN: OPEN, STRANDED: STRANDED, DRAINING: DRAINING, BOTH: BOTH},
    ServiceEvent.DRAIN: {OPEN: DRAINING, STRANDED: BOTH, DRAINING: DRAINING, BOTH: BOTH, CLOSED: CLOSED},
    ServiceEvent.CLOSE: dict.fromkeys(Service, CLOSED),
}


@pytest.mark.parametrize(("state", "event"), list(product(Service, ServiceEvent)), ids=lambda each: each.name)
def test_every_state_and_event(state: Service, event: ServiceEvent) -> None:
    following = STEPS[event].get(state)
    if following is None:
        with pytest.raises(RuntimeError, match=f"{event.name} cannot happen to a model that is {state.name}"):
            after(state, event)
    else:
        assert after(state, event) is following


def test_the_table_is_complete() -> None:
    assert set(TRANSITIONS) == set(Service)
    assert set(STEPS) == set(ServiceEvent)


def test_what_the_states_say_of_requests() -> None:
    assert [state for state in Service if not state.takes] == [STRANDED, BOTH]
    assert [state for state in Service if state.drains] == [DRAINING, BOTH]


@pytest.mark.parametrize("event", [event for event in ServiceEvent if event is not ServiceEvent.CHANGE])
def test_a_closed_model_stays_closed(event: ServiceEvent) -> None:
    assert after(CLOSED, event) is CLOSED


def test_what_began_to_drain_never_takes_requests_as_before() -> None:
    for state in (DRAINING, BOTH):
        assert {TRANSITIONS[state][event] for event in TRANSITIONS[state]} == {DRAINING, BOTH, CLOSED}
