"""Locks by name, all that a caller needs at once."""

import asyncio
from collections.abc import Callable

from fake_loader import turns

from modserve.repository.locks import NameLocks


def names(text: str) -> Callable[[], set[str]]:
    return lambda: set(text)


async def test_callers_with_other_names_do_not_wait() -> None:
    locks = NameLocks()
    assert await locks.hold(names("ab")) == {"a", "b"}
    assert await locks.hold(names("c")) == {"c"}
    assert locks.busy == {"a", "b", "c"}
    locks.release("a", "b", "c")
    assert locks.busy == set()


async def test_first_come_first_served() -> None:
    locks = NameLocks()
    await locks.hold(names("b"))
    order: list[str] = []

    async def caller(text: str) -> None:
        await locks.hold(names(text))
        order.append(text)
        locks.release(*text)

    tasks = [asyncio.create_task(caller(text)) for text in ("ab", "a", "c")]
    await turns(lambda: order == ["c"])
    assert locks.busy == {"b"}, "the second waits for the first, which waits for 'b'"
    locks.release("b")
    await asyncio.gather(*tasks)
    assert order == ["c", "ab", "a"]


async def test_a_caller_that_gives_up_holds_nobody_up() -> None:
    locks = NameLocks()
    await locks.hold(names("b"))
    first = asyncio.create_task(locks.hold(names("ab")))
    await asyncio.sleep(0)
    second = asyncio.create_task(locks.hold(names("a")))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == {"a"}
    assert locks.busy == {"a", "b"}


async def test_a_caller_may_need_more_when_its_turn_comes() -> None:
    locks = NameLocks()
    await locks.hold(names("a"))
    await locks.hold(names("b"))
    needed = {"a"}
    task = asyncio.create_task(locks.hold(lambda: set(needed)))
    await asyncio.sleep(0)
    needed.add("b")
    locks.release("a")
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    locks.release("b")
    assert await task == {"a", "b"}
