"""Chats over HTTP, while something happens to their model."""

from collections.abc import Callable

import pytest

from .chats import FORMS
from .world import World


def leave_in_the_middle(world: World) -> None:
    """Of their streams, that is."""
    for number in range(6):
        world.respond(number)
        world.run(0.01)
    world.loop.act(world.leave_all)


EVENTS: dict[str, Callable[[World], object]] = {
    "nothing": lambda world: None,
    "a client leaves": lambda world: world.leave_texts(),
    "all clients leave": lambda world: world.loop.act(world.leave_all),
    "all clients leave in the middle": leave_in_the_middle,
    "the engine fails": lambda world: world.finish(how="error"),
    "the instance is lost": lambda world: world.lose(),
    "they time out": lambda world: world.run(0.4),
    "others join": lambda world: [world.chat("chat", stream=True, choices=2), world.submit("chat")],
    "others join with items": lambda world: [world.chat("chat", stream=each, has_items=True) for each in (True, False)],
    "another instance, in place": lambda world: world.change("chat", count=2),
    "the files change": lambda world: world.load_again("chat"),
    "it is evicted": lambda world: world.evict("chat"),
    "another model needs its memory": lambda world: world.submit("plain"),
    "it is unloaded": lambda world: world.unload("chat"),
    "the server stops": lambda world: world.stop(),
    "the server is drained": lambda world: world.drain(),
}


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("event", EVENTS)
def test_every_chat_ends(event: str, first: bool, turns: int) -> None:
    """`first`: nothing is known of the model yet. The event comes `turns` turns of the event loop after the chats."""
    with World(limit=70_000_000) as world:
        world.need("chat")
        if not first:
            world.chat("chat")
            world.run()
            world.finish()
            world.run()
        plain, thinking, endless = FORMS
        clients = [
            world.chat("chat", stream=True, choices=2, form=thinking),
            world.chat("chat", stream=True),
            world.chat("chat", timeout_s=0.3, form=thinking),
            world.chat("chat", stream=True, has_items=True, form=endless),
            world.chat("chat", has_items=True, form=(plain, thinking, endless)[turns % 3]),
        ]
        for _ in range(turns):
            world.turn()
        world.respond()
        EVENTS[event](world)
        for number in range(16):
            world.run(0.02)
            world.respond(number)
            world.run(0.02)
            world.finish()
    statuses = [client.post.status for client in clients]
    failing = ("the engine fails", "the instance is lost", "it is unloaded", "the server stops")
    assert 200 in statuses or event in failing or "all clients leave" in event, clients
