import asyncio
import ctypes
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from modserve.resources import allocator

MIB = 1024 * 1024
FREEING = """
import ctypes, threading
from modserve.resources.allocator import glibc, resident, tune

library = glibc({})
tune(library)
library.malloc.restype = ctypes.c_void_p
library.malloc.argtypes = [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
library.malloc_trim(0)
before = resident()
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
held = resident() - before
for each in blocks:
    library.free(each)
library.malloc_trim(0)
print(held, resident() - before)
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


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The process's memory in MiB, which the test sets."""
    size = [100]
    monkeypatch.setattr(allocator, "resident", lambda: size[0] * MIB)
    return size


async def look(loop: Loop) -> None:
    timer, loop.timer = loop.timer, None
    assert timer is not None
    timer()
    await asyncio.sleep(0)
    assert loop.timer is not None, "it goes on looking"


async def test_memory_is_given_back_when_it_has_stopped_growing(memory: list[int]) -> None:
    loop, library = Loop(), Library()
    trimmer: Any = allocator.Trimmer(loop, library)  # type: ignore[arg-type]  # all that it uses of them
    for size in (163, 500, 501, 500):
        memory[0] = size
        await look(loop)
    assert library.trimmed == 1
    await look(loop)
    assert library.trimmed == 1, "what could not be given back is in use: it is not tried again and again"
    memory[0] = 563
    await look(loop)
    await look(loop)
    assert library.trimmed == 1, "too little to be worth it"
    memory[0] = 120
    await look(loop)
    memory[0] = 200
    await look(loop)
    await look(loop)
    assert library.trimmed == 2
    trimmer.stop()


def test_the_thresholds_are_set() -> None:
    library = Library()
    allocator.tune(library)  # type: ignore[arg-type]  # all that it uses of it
    assert library.options == [(-3, 32 * MIB), (-1, 128 * MIB), (-8, 1)]


def test_what_threads_have_freed_goes_back_to_the_system() -> None:
    """In a process of its own, since the settings hold for all of it."""
    done = subprocess.run([sys.executable, "-c", FREEING], capture_output=True, text=True, check=True, timeout=60)
    held, kept = map(int, done.stdout.split())
    assert 110 * MIB < held < 140 * MIB
    assert kept < 10 * MIB


@pytest.mark.parametrize("name", ["LD_PRELOAD", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_who_sets_the_allocator_is_left_alone(name: str) -> None:
    assert allocator.glibc({name: "1"}) is None


def test_another_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert allocator.glibc({}) is None


def test_what_a_process_holds_is_known() -> None:
    assert 10 * MIB < allocator.resident() < 10_000 * MIB
