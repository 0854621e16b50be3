"""Keys change while requests of every kind are under way: these end once, and those that come later are judged anew."""

from typing import Any

import pytest

from modserve.core.errors import Code, OverloadedError, PermissionDeniedError, UnauthenticatedError

from .keys import CHANGES, DAMAGES, POSTS
from .ledger import Entry
from .world import World

MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "stream": {},
    "chain": {},
    "direct": {"sequence_id": 1},
    "oldest": {"sequence_id": 1},
}
"""A queue, a decoupled model, an ensemble and sequences; with what a request says about its sequence."""
REFUSALS: dict[str, type[Exception]] = {
    "revoke": UnauthenticatedError,
    "expire": UnauthenticatedError,
    "read": PermissionDeniedError,
    "limit": OverloadedError,
    "starve": OverloadedError,
}
"""The others leave the key as good as it was, at these models."""
STATUSES = {"revoke": 401, "expire": 401, "rotate": 200, "read": 403, "limit": 429}
EXPIRY_S = 6.0


def requests(world: World, model: str) -> list[Entry]:
    """One that runs, and one behind it."""
    more: dict[str, Any] = {"sequence_start": True} if MODELS[model] else {}
    entries = [world.submit(model, **MODELS[model], **more), world.submit(model, **MODELS[model])]
    world.run()
    assert all(entry.open for entry in entries)
    return entries


def finish(world: World) -> None:
    world.loop.act(world.engines.run_by_themselves)
    world.run(1.0)


@pytest.mark.parametrize("change", [each for each in CHANGES if each != "narrow"])
@pytest.mark.parametrize("model", MODELS)
def test_a_change_while_requests_wait(model: str, change: str) -> None:
    in_stream = model in ("stream", "direct")
    with World(keys=True) as world:
        assert world.keys is not None
        world.key = "first", False, in_stream
        entries = requests(world, model)
        world.keys.change(change, "first")
        world.run(EXPIRY_S)
        assert all(entry.open for entry in entries), "who was accepted stays so"
        late = world.submit(model, **MODELS[model])
        if change == "starve":
            late = world.submit(model, **MODELS[model])  # the first one is that of the new rate's first second
        if change in REFUSALS:
            assert type(late.refusal) is REFUSALS[change]
        else:
            assert late.refusal is None
        other, world.key = world.key, ("second", False, in_stream)
        assert world.submit("plain").refusal is None, "another key is as good as before"
        world.key = other
        finish(world)
        assert all(entry.ended and entry.failure is None for entry in entries)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("model", ["plain", "direct"])
def test_a_damaged_file_changes_nothing_until_it_is_mended(model: str, damage: str) -> None:
    with World(keys=True) as world:
        assert world.keys is not None
        world.key = "first", False, False
        entries = requests(world, model)
        world.keys.damage(damage)
        world.run(EXPIRY_S)
        assert world.submit(model, **MODELS[model]).refusal is None
        world.keys.change("revoke", "first")
        world.run(EXPIRY_S)
        assert isinstance(world.submit(model, **MODELS[model]).refusal, UnauthenticatedError)
        finish(world)
        assert all(entry.ended and entry.failure is None for entry in entries)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("change", STATUSES)
def test_a_change_while_a_chat_goes_on(change: str, stream: bool) -> None:
    with World(keys=True) as world:
        assert world.keys is not None
        clients = [world.chat("chat", stream=stream, choices=2)]
        world.run()
        world.keys.change(change, POSTS)
        world.run(EXPIRY_S)
        clients.append(world.chat("chat", stream=stream))
        world.run(EXPIRY_S)
        finish(world)
        assert [client.post.status for client in clients] == [200, STATUSES[change]]


@pytest.mark.parametrize("change", STATUSES)
def test_a_change_while_texts_are_read(change: str) -> None:
    with World(keys=True) as world:
        assert world.keys is not None
        clients = [world.send_texts("text", [3, 1, 2])]
        world.run()
        world.keys.change(change, POSTS)
        world.run(EXPIRY_S)
        clients.append(world.send_texts("text", [1]))
        world.run(EXPIRY_S)
        finish(world)
        assert [client.post.status for client in clients] == [200, STATUSES[change]]


def test_the_former_secret_of_a_rotated_key_has_its_time() -> None:
    with World(keys=True) as world:
        assert world.keys is not None
        world.keys.change("rotate", "first")
        world.run(2.0)
        for former in (False, True):
            world.key = "first", former, False
            assert world.submit("plain").refusal is None
        world.run(10.0)
        assert isinstance(world.submit("plain").refusal, UnauthenticatedError)
        world.key = "first", False, False
        assert world.submit("plain").refusal is None


def test_who_has_no_good_key_does_not_hear_of_a_drain() -> None:
    with World(keys=True) as world:
        assert world.keys is not None
        world.key = "first", False, False
        entries = requests(world, "plain")
        world.drain()
        world.run(2.0)
        refusal = world.submit("plain").refusal
        assert refusal is not None
        assert refusal.code is Code.UNAVAILABLE
        world.keys.change("revoke", "first")
        world.run(EXPIRY_S)
        assert isinstance(world.submit("plain").refusal, UnauthenticatedError)
        finish(world)
        assert all(entry.ended and entry.failure is None for entry in entries)
