"""Texts over HTTP, while something happens to their model: tokenizing, inference and the response are one call."""

from collections.abc import Callable

import pytest

from .world import World

EVENTS: dict[str, Callable[[World], object]] = {
    "nothing": lambda world: None,
    "a client leaves": lambda world: world.leave_texts(),
    "the engine refuses the batch": lambda world: world.finish(how="error"),
    "the instance is lost": lambda world: world.lose(),
    "they time out": lambda world: world.run(0.4),
    "others join": lambda world: [world.send_texts("text", [3, 1]), world.submit("text", length=4)],
    "another instance, in place": lambda world: world.change("text", count=2),
    "an ordered queue, in place": lambda world: world.change("text", ordered=True),
    "the files change": lambda world: world.load_again("text"),
    "it is evicted": lambda world: world.evict("text"),
    "another model needs its memory": lambda world: world.submit("plain"),
    "it is unloaded": lambda world: world.unload("text"),
    "the server stops": lambda world: world.stop(),
    "the server is drained": lambda world: world.drain(),
}


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("event", EVENTS)
def test_every_call_ends_with_its_own_texts(event: str, first: bool, turns: int) -> None:
    """`first`: the tokenizer is not there yet. The event comes `turns` turns of the event loop after the calls."""
    with World(limit=70_000_000) as world:
        world.need("text")
        if not first:
            world.send_texts("text", [1])
            world.run()
            world.finish()
            world.run()
        clients = [
            world.send_texts("text", [1, 5, 2]),
            world.send_texts("text", [3], timeout_s=0.3),
            world.send_texts("text", [2]),
        ]
        for _ in range(turns):
            world.turn()
        EVENTS[event](world)
        for _ in range(8):
            world.run(0.02)
            world.finish()
    statuses = [client.post.status for client in clients]
    assert 200 in statuses or event in (
        "the engine refuses the batch",
        "the instance is lost",
        "it is unloaded",
        "the server stops",
    ), clients
