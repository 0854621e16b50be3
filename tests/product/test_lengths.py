"""Requests of different lengths, which overtake one another, while something happens to their model."""

from collections.abc import Callable

import pytest

from .world import World

LENGTHS = (1, 8, 3, 8, 2, 1, 5, 2)
EVENTS: dict[str, Callable[[World], object]] = {
    "one is cancelled": lambda world: world.cancel(3),
    "the engine refuses the batch": lambda world: world.finish(how="error"),
    "the instance is lost": lambda world: world.lose(),
    "they time out": lambda world: world.run(0.3),
    "others join": lambda world: [world.submit("padded", length=length) for length in (9, 1)],
    "another instance, in place": lambda world: world.change("padded", count=2),
    "another queue, in place": lambda world: world.change("padded", delay_ms=100, levels=2),
    "an ordered queue, in place": lambda world: world.change("padded", ordered=True),
    "the files change": lambda world: world.load_again("padded"),
    "it is evicted": lambda world: world.evict("padded"),
    "another model needs its memory": lambda world: world.submit("plain"),
    "it is unloaded": lambda world: world.unload("padded"),
    "the server stops": lambda world: world.stop(),
    "the server is drained": lambda world: world.drain(),
}


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("event", EVENTS)
def test_each_is_settled_with_its_own_response(event: str, later: bool) -> None:
    """`later`: after batches whose run times say that a few requests take no longer than one."""
    with World(limit=70_000_000) as world:
        shapes: list[tuple[int, ...]] = []

        def finish(times: int) -> None:
            for _ in range(times):
                shapes.extend(execution.inputs["IN"].shape for execution in world.executions)
                world.run(0.05)
                world.finish()
                world.run()

        world.submit("padded", length=2)
        world.run()
        if later:
            for length in LENGTHS:
                world.submit("padded", length=length)
            finish(12)
            assert max(rows for rows, _ in shapes) == 4
            world.submit("padded", length=2)
            world.run()
        entries = [
            world.submit("padded", length=length, queue_timeout_ms=200 * (number % 2))
            for number, length in enumerate(LENGTHS)
        ]
        world.run()
        EVENTS[event](world)
        finish(12)
    assert any(entry.responses for entry in entries)
