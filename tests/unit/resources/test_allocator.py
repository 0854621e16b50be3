import asyncio
import ctypes
import subprocess
import sys
from collections.abc import Callable

import pytest

from modserve.core.runtime import long_buffers
from modserve.resources import allocator

MIB = 1024 * 1024
FREEING = """
import ctypes, threading
from modserve.resources.allocator import glibc, resident, tune, usage

library = glibc({})
tune(library)
library.malloc.restype = ctypes.c_void_p
library.malloc.argtypes = [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
library.malloc_trim(0)
used = usage(library)
before, before_used = resident(), used()
blocks = []

def allocate():
    block = library.malloc(30 << 20)
    ctypes.memset(block, 1, 30 << 20)
    blocks.append(block)

threads = [threading.Thread(target=allocate) for _ in range(4)]
for each in threads:
    each.start()
for each in threads:
    each.join()
held, held_used = resident() - before, used() - before_used
for each in blocks:
    library.free(each)
library.malloc_trim(0)
print(held, resident() - before, held_used, used() - before_used)
"""


class Library:
    """What is used of the C library."""

    def __init__(self) -> None:
        self.options: list[tuple[int, int]] = []
        self.trimmed = 0

    def mallopt(self, option: int, value: int) -> int:
        self.options.append((option, value))
        return 1

    def malloc_trim(self, pad: int) -> int:
        self.trimmed += 1
        return 1


class Loop:
    """An event loop whose timers and threads are run by the test."""

    def __init__(self) -> None:
        self.timer: Callable[[], None] | None = None

    def call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        assert delay == allocator.LOOK_S
        self.timer = callback
        return asyncio.TimerHandle(0, callback, (), asyncio.get_running_loop())

    def run_in_executor(self, executor: None, work: Callable[..., int], *args: int) -> "asyncio.Future[int]":
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        done.set_result(work(*args))
        return done

    def is_closed(self) -> bool:
        return False


class Process:
    """What the process has and what its allocator has given out of that, in MiB; the test sets both."""

    def __init__(self) -> None:
        self.resident = 100
        self.used = 60

    def in_use(self) -> int:
        return self.used * MIB


class Engine:
    """An engine that keeps memory which the C library counts as in use."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.kept = 0

    def spare(self) -> int:
        return self.kept * MIB

    def give_back(self) -> None:
        self.process.used -= self.kept
        self.process.resident -= self.kept
        self.kept = 0


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    process = Process()
    monkeypatch.setattr(allocator, "resident", lambda: process.resident * MIB)
    return process


async def look(loop: Loop) -> None:
    timer, loop.timer = loop.timer, None
    assert timer is not None
    timer()
    for _ in range(10):  # turns of the event loop until the look is over
        await asyncio.sleep(0)
    assert loop.timer is not None, "it goes on looking"


async def looks(loop: Loop, process: Process, library: Library, *states: tuple[int, int]) -> list[int]:
    """How often memory was given back after each look, at which the process has and uses so much."""
    counts = []
    for process.resident, process.used in states:
        await look(loop)
        counts.append(library.trimmed)
    return counts


def started(process: Process) -> tuple[Loop, Library, allocator.Trimmer]:
    loop, library = Loop(), Library()
    trimmer = allocator.Trimmer(loop, library, process.in_use)  # type: ignore[arg-type]  # all that it uses of them
    return loop, library, trimmer


async def test_memory_is_given_back_when_the_slack_has_stopped_growing(process: Process) -> None:
    loop, library, trimmer = started(process)
    assert await looks(loop, process, library, (500, 100), (700, 200), (701, 200)) == [0, 0, 1]
    assert await looks(loop, process, library, (701, 200)) == [1], "what could not be given back is not tried again"
    assert await looks(loop, process, library, (721, 200), (732, 200)) == [1, 1], "too little to be worth it"
    assert await looks(loop, process, library, (240, 200), (280, 200), (281, 201)) == [1, 1, 2]
    trimmer.stop()


async def test_memory_in_use_is_no_slack_however_long_it_is_held(process: Process) -> None:
    """Responses that waited for slow readers for minutes: their memory goes back when these have gone."""
    loop, library, trimmer = started(process)
    assert await looks(loop, process, library, *[(2100, 2060)] * 30) == [0] * 30
    assert await looks(loop, process, library, (1800, 60), (1800, 60)) == [0, 1]
    trimmer.stop()


async def test_a_busy_process_gives_back_while_its_slack_changes(process: Process) -> None:
    loop, library, trimmer = started(process)
    assert await looks(loop, process, library, (200, 60), (215, 60), (230, 60)) == [0, 1, 1]
    trimmer.stop()


async def test_the_rest_goes_back_when_the_process_is_quiet(process: Process) -> None:
    loop, library, trimmer = started(process)
    assert await looks(loop, process, library, (110, 60), (120, 60), (120, 60)) == [0, 0, 1]
    assert await looks(loop, process, library, (127, 60), (127, 60)) == [1, 1], "a few megabytes are no rest"
    trimmer.stop()


async def test_what_engines_have_to_spare_is_slack(process: Process) -> None:
    loop, library, trimmer = started(process)
    engine = Engine(process)
    long_buffers.register(engine)
    try:
        assert await looks(loop, process, library, *[(2100, 2060)] * 5) == [0] * 5
        engine.kept = 1900
        assert await looks(loop, process, library, (2100, 2060), (2100, 2060)) == [0, 1]
        assert (process.resident, process.used, engine.kept) == (200, 160, 0)
    finally:
        long_buffers.unregister(engine)
        trimmer.stop()


def test_the_thresholds_are_set() -> None:
    library = Library()
    allocator.tune(library)  # type: ignore[arg-type]  # all that it uses of it
    assert library.options == [(-3, 32 * MIB), (-1, 128 * MIB), (-8, 1)]


def test_what_threads_have_freed_goes_back_to_the_system() -> None:
    """In a process of its own, since the settings hold for all of it."""
    done = subprocess.run([sys.executable, "-c", FREEING], capture_output=True, text=True, check=True, timeout=60)
    held, kept, held_used, kept_used = map(int, done.stdout.split())
    assert 110 * MIB < held < 140 * MIB
    assert kept < 10 * MIB
    assert 119 * MIB < held_used < 121 * MIB
    assert abs(kept_used) < MIB


@pytest.mark.parametrize("name", ["mallinfo2", "mallinfo"])
def test_what_is_in_use_is_known_of_older_libraries(name: str) -> None:
    """Before glibc 2.33 there is only `mallinfo`."""
    library = allocator.glibc({})
    assert library is not None
    handle = library._handle

    class Older:
        def __init__(self) -> None:
            self._handle = handle
            if name == "mallinfo2":
                self.mallinfo2 = None

    assert 0 < allocator.usage(Older())() < 2**32  # type: ignore[arg-type]  # all that it uses of it


@pytest.mark.parametrize("name", ["LD_PRELOAD", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_who_sets_the_allocator_is_left_alone(name: str) -> None:
    assert allocator.glibc({name: "1"}) is None


def test_another_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert allocator.glibc({}) is None


def test_what_a_process_holds_is_known() -> None:
    assert 10 * MIB < allocator.resident() < 10_000 * MIB
