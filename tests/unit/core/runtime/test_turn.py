"""When what came in a turn of the event loop is run: when the turn is over, or at once where requests come singly."""

import asyncio
import gc
import weakref

from modserve.core.runtime.turn import turn_of

SURE = 16


class Client:
    """Hands requests over through a front end, and hears of them."""

    def __init__(self) -> None:
        self.turn = turn_of(asyncio.get_running_loop())
        self.heard = 0

    def hear(self) -> None:
        self.heard += 1

    def send(self) -> bool:
        """Whether the request ran at once."""
        before = self.heard
        self.turn.begin()
        self.turn.call_soon(self.hear)
        assert self.heard == before, "nothing runs before the front end is ready for responses"
        self.turn.end()
        return self.heard > before

    async def send_alone(self, times: int) -> list[bool]:
        """The same for requests that have a turn each."""
        outcomes = []
        for _ in range(times):
            outcomes.append(self.send())
            await asyncio.sleep(0)
        return outcomes


async def test_what_comes_singly_runs_at_once_from_some_on_but_for_a_look_now_and_then() -> None:
    outcomes = await Client().send_alone(3 * SURE)
    assert outcomes == [False] * SURE + ([True] * (SURE - 1) + [False]) * 2


async def test_company_in_a_turn_that_is_looked_at_ends_that() -> None:
    client, other = Client(), Client()
    await client.send_alone(2 * SURE - 1)
    assert not client.send()
    assert not other.send()
    await asyncio.sleep(0)
    assert (client.heard, other.heard) == (2 * SURE, 1)
    assert not any(await client.send_alone(SURE))
    assert client.send()


async def test_what_comes_together_is_seen_together() -> None:
    clients = [Client() for _ in range(3)]
    for _ in range(2 * SURE):
        assert [client.send() for client in clients] == [False] * 3
        await asyncio.sleep(0)
    assert [client.heard for client in clients] == [2 * SURE] * 3


async def test_what_no_front_end_hands_over_waits_for_the_end_of_the_turn_and_is_company() -> None:
    client = Client()
    for _ in range(2 * SURE):
        client.turn.call_soon(client.hear)
        assert not client.send()
        await asyncio.sleep(0)
    assert client.heard == 4 * SURE


async def test_a_front_end_that_hands_over_nothing_is_none_of_its_business() -> None:
    client = Client()
    await client.send_alone(SURE)
    for _ in range(100):
        client.turn.begin()
        client.turn.end()
    assert client.send()


async def test_what_is_left_over_is_called_in_the_next_turn() -> None:
    turn = turn_of(asyncio.get_running_loop())
    order: list[str] = []

    def first() -> None:
        order.append("first")
        turn.call_soon(lambda: order.append("later"))

    turn.call_soon(first)
    turn.call_soon(lambda: order.append("second"))
    await asyncio.sleep(0)
    assert order == ["first", "second"]
    await asyncio.sleep(0)
    assert order == ["first", "second", "later"]


async def test_what_raises_costs_nobody_else_anything() -> None:
    loop, said = asyncio.get_running_loop(), list[str]()
    loop.set_exception_handler(lambda _, context: said.append(str(context["exception"])))
    client = Client()

    def broken() -> None:
        raise RuntimeError("broken")

    await client.send_alone(SURE)
    client.turn.begin()
    client.turn.call_soon(broken)
    client.turn.call_soon(client.hear)
    client.turn.end()
    assert (said, client.heard) == (["broken"], SURE + 1)


async def test_all_of_a_loop_share_a_turn() -> None:
    loop = asyncio.get_running_loop()
    assert turn_of(loop) is turn_of(loop)


def test_a_turn_ends_with_its_event_loop() -> None:
    loop = asyncio.new_event_loop()
    there = weakref.ref(loop)
    turn_of(loop)
    loop.close()
    del loop
    gc.collect()
    assert there() is None
