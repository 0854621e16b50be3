"""Sequences: their steps and lengths, and that loops send them whole."""

import asyncio
from random import Random

import pytest
from bench_fakes import Factory, FakeSlot, open_loop

from modserve.commands.bench import loops
from modserve.commands.bench.inputs import SequenceLengths, Sequences
from modserve.commands.bench.loops import ClosedLoop
from modserve.commands.bench.slots import RequestSlot


class Nobody:
    """Has slots that get no response."""

    def on_done(self, slot: RequestSlot, error: str) -> None:
        raise AssertionError

    def on_response(self, slot: RequestSlot) -> None:
        raise AssertionError


def tag(sequence: int | str, start: bool, end: bool) -> bytes:
    return f"{sequence}{' start' if start else ''}{' end' if end else ''}".encode()


def sequences(length: int | None, streams: tuple[int, ...] = (1,), *, made_up: bool = True) -> Sequences:
    """Of exactly that length, with the ids 1, 2, …"""
    return Sequences(tag, streams, SequenceLengths(length, 0.0), made_up, ids=iter(range(1, 100)))


LENGTHS: dict[str, tuple[SequenceLengths, int | None, set[int]]] = {
    "made up": (SequenceLengths(), None, set(range(16, 25))),
    "the data's": (SequenceLengths(), 7, {7}),
    "a length": (SequenceLengths(10), 7, set(range(8, 13))),
    "another variation": (SequenceLengths(10, 50.0), None, set(range(5, 16))),
    "no variation": (SequenceLengths(10, 0.0), None, {10}),
    "short ones": (SequenceLengths(1, 100.0), None, {1, 2}),
}


@pytest.mark.parametrize("case", LENGTHS)
def test_lengths(case: str) -> None:
    lengths, steps, expected = LENGTHS[case]
    random = Random(0)
    assert {lengths.draw(steps, random) for _ in range(1000)} == expected


def test_steps_and_ids() -> None:
    """Two streams of data in turns, of two and three steps; each slot has its own sequence."""
    made = sequences(None, (2, 3), made_up=False)
    one, other = FakeSlot(Nobody()), FakeSlot(Nobody())
    assert [made.next(one), made.next(other), made.next(other)] == [(0, b"1 start"), (2, b"2 start"), (3, b"2")]
    assert made.under_way(one)
    assert made.next(one) == (1, b"1 end")
    assert not made.under_way(one)
    assert made.next(one) == (0, b"3 start")
    assert made.next(other) == (4, b"2 end")
    assert made.last(one) == (1, b"3 end")
    assert not made.under_way(one)


def test_a_sequence_longer_than_its_data_begins_anew() -> None:
    made = sequences(5, (2,), made_up=False)
    slot = FakeSlot(Nobody())
    assert [made.next(slot)[0] for _ in range(5)] == [0, 1, 0, 1, 0]


def test_ids_differ_between_runs_and_may_be_texts() -> None:
    runs = [Sequences(tag, [1], SequenceLengths(1)) for _ in range(5)]
    ids = {int(run.only()[1].split()[0]) for run in runs}
    assert len(ids) == 5
    assert all(0 < id < 2**31 - 1 for id in ids)
    assert Sequences(tag, [1], SequenceLengths(1), text_ids=True).only()[1].startswith(b"bench-")


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    time = [1_000_000_000]
    monkeypatch.setattr(loops, "clock", lambda: time[0])
    return time


async def test_a_closed_loop_sends_sequences_whole(now: list[int]) -> None:
    factory = Factory()
    generator = ClosedLoop(2, factory, 1, 60, sequences=sequences(2))
    await generator.start()
    first, second = factory.slots
    for _ in range(3):
        first.respond()
    assert first.tags == [b"1 start", b"1 end", b"3 start", b"3 end"]
    assert second.tags == [b"2 start"]
    second.respond("no")  # the rest of the sequence is not sent
    assert second.tags[1:] == [b"4 start"]
    window = generator.take_window()
    assert (len(window.latencies), window.sequences, dict(window.errors)) == (3, 1, {"no": 1})
    first.respond()
    assert generator.take_window().sequences == 1
    await generator.stop(0.0)


async def test_what_is_under_way_gets_its_end(now: list[int]) -> None:
    factory = Factory()
    generator = ClosedLoop(2, factory, 1, 60, sequences=sequences(9))
    await generator.start()
    first, second = factory.slots
    stopping = asyncio.create_task(generator.stop(5))
    await asyncio.sleep(0)
    first.respond()
    assert first.tags == [b"1 start", b"1 end"]
    first.respond()
    second.respond("no")  # the server has ended that itself
    assert await stopping == 0
    assert second.tags == [b"2 start"]


async def test_sequences_of_an_open_loop_take_turns(now: list[int]) -> None:
    factory = Factory()
    generator, _ = open_loop(factory, 1000, 2, sequences=sequences(3))
    await generator.start()
    first, second = factory.slots
    for _ in range(4):
        for slot in factory.slots:
            if slot.start:
                slot.respond()
        now[0] += 1_000_000
        generator.tick()
    assert first.tags == [b"1 start", b"1", b"1 end"]
    assert second.tags == [b"2 start", b"2"]
    first.respond()  # both are idle, one in the middle of a sequence
    assert second.start == 0
    stopping = asyncio.create_task(generator.stop(5))
    await asyncio.sleep(0)
    assert second.tags == [b"2 start", b"2", b"2 end"]
    second.respond()
    assert await stopping == 0


async def test_requests_of_an_open_loop_wait_for_a_sequence(now: list[int]) -> None:
    """More slots would be more sequences."""
    factory = Factory()
    generator, _ = open_loop(factory, 1000, 1, sequences=sequences(3))
    await generator.start()
    now[0] += 2_000_000
    generator.tick()
    [slot] = factory.slots
    assert generator.take_window().waiting == 2
    slot.respond()
    slot.respond()
    assert slot.tags == [b"1 start", b"1", b"1 end"]
    await generator.stop(0.0)


async def test_responses_are_timed(now: list[int]) -> None:
    """The first from the request's start, the others from one another."""
    factory = Factory()
    generator = ClosedLoop(1, factory, 1, 60)
    await generator.start()
    [slot] = factory.slots
    for milliseconds in (3, 1, 2):
        now[0] += milliseconds
        generator.on_response(slot)
    now[0] += 1
    slot.respond()
    now[0] += 5
    generator.on_response(slot)
    window = generator.take_window()
    assert (list(window.firsts), list(window.gaps), list(window.latencies)) == ([3, 5], [1, 2], [7])
    await generator.stop(0.0)
