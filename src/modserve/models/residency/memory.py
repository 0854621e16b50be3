"""The memory budget of the models: residents, eviction, and loading within the limit.

Accounting. Each occupant counts with `held`: in memory, its measured size; while it is being loaded, its expected size,
which is the last measured one or the size of its files. The sum stays within the limit, except for a first load that
turns out larger than expected: then others are evicted, or it is.

Eviction. Candidates are models without work in flight, least recently used first, and only if enough of them can leave
for the new one to fit. Occupants that are pinned, have work in flight or open sequences stay. A model borrowed by
another one (an ensemble between two of its steps) stays as well, unless nothing at all is in flight anywhere: then
waiting would be useless, since the borrowers wait for the memory themselves.

Admission. Waiting models get room in order of arrival: an evicted model that is wanted again at once waits behind the
one that replaced it. After a wait of `BLOCKED_NS` a model no longer blocks others.

If all models are always busy, none would ever leave. So after `PATIENCE_NS` the least recently used ones are held back:
new requests for them wait, and they leave when their requests in flight are finished. After `wait_ns` the waiting model
fails, and the held-back ones continue.

Loads run one after the other, so that the growth of the process is the size of the loaded model. While a load calls
another model, for example in a warm-up, other loads may run: the called model may have to be loaded first, and is not
counted twice.

Model sizes, in files and in memory.

The memory added by a load is read from ``/proc``: the anonymous and file-backed pages of this process, and the
proportional share (PSS) of the processes that the load has started, as they share pages of the interpreter and
libraries. Freed memory that the allocator keeps is returned to the system first; otherwise the load would reuse it and
seem to need nothing. Shared memory is not counted: it belongs to requests. These functions block, and run on a thread.

Memory added by concurrent loads.

The growth of the process in a time span belongs to the loads under way in that span, and to a single load entirely. The
growth of several together is estimated for each: in proportion to the part of its files' size not yet covered by its
growth alone. Loads of models that run in processes of their own take no part in this. As that is known only at their
end, sizes are known when no load is under way any more.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from modserve.core.errors import ModserveError, OverloadedError, unavailable
from modserve.core.residency import MemoryReport, megabytes
from modserve.core.runtime.background import Background
from modserve.core.runtime.clock import Clock
from modserve.core.servable import Servable
from modserve.core.version import ModelId

_PROC = Path("/proc")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Files(NamedTuple):
    """The files of a version."""

    size: int = 0
    """Size of all of them in bytes."""
    changed_ns: int = 0
    """Time of the latest change."""


def files_of(directory: Path) -> Files:
    """Return the size and the latest change of all files below a directory."""
    size = changed_ns = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                status = os.stat(os.path.join(folder, name))
            except OSError:
                continue
            size += status.st_size
            changed_ns = max(changed_ns, status.st_mtime_ns)
    return Files(size, changed_ns)


def own_bytes(proc: Path = _PROC) -> int:
    """Return the memory of this process in bytes, without shared memory; 0 if the system does not report it."""
    try:
        lines = (proc / "self/status").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssFile:")))


def children(pid: int, proc: Path = _PROC) -> frozenset[int]:
    """Return the child processes of a process, and their descendants."""
    parents: dict[int, list[int]] = {}
    try:
        numbers = [int(name) for name in os.listdir(proc) if name.isdecimal()]
    except OSError:
        return frozenset()
    for number in numbers:
        try:  # after the name, which may contain any characters: the state, and the parent
            parent = int((proc / str(number) / "stat").read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        parents.setdefault(parent, []).append(number)
    below: set[int] = set()
    left = [pid]
    while left:
        news = [each for each in parents.get(left.pop(), ()) if each not in below]
        below.update(news)
        left += news
    return frozenset(below)


def share_of(pid: int, proc: Path = _PROC) -> int:
    """Return the proportional set size of another process; its resident size if the system reports no more."""
    try:
        for line in (proc / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    try:
        return int((proc / str(pid) / "statm").read_bytes().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0


class MemorySample(NamedTuple):
    """The memory before a load."""

    own: int
    processes: frozenset[int]


@dataclass(frozen=True, slots=True)
class Meter:
    """Measures the memory that a load adds. `trim` returns freed memory from the allocator to the system."""

    trim: Callable[[], object] = lambda: None
    own: Callable[[], int] = own_bytes
    processes: Callable[[], frozenset[int]] = lambda: children(os.getpid())
    share: Callable[[int], int] = share_of

    def before(self) -> MemorySample:
        self.trim()
        return MemorySample(self.own(), self.processes())

    def after(self, before: MemorySample) -> int:
        """Return the growth of this process, and the memory of new processes."""
        self.trim()
        grown = max(0, self.own() - before.own)
        return grown + sum(self.share(pid) for pid in self.processes() - before.processes)


_LEAST = 2**20
"""Minimum weight of each model when growth is divided: an engine needs some memory for a model of any size."""


class MeasuredLoad:
    """A load, under way or ended."""

    def __init__(self, files: int) -> None:
        self.files = files
        self.elsewhere = 0
        """Memory of the processes that run the model, in bytes."""
        self.own = False
        """True if the load has added nothing to this process."""
        self.grown = 0.0
        self.on_measured: Callable[[int], None] | None = None
        """Callback for the memory of the model in bytes; None for a failed load."""


class _Span(NamedTuple):
    """Growth of the process while certain loads were under way."""

    grown: int
    loads: Sequence[MeasuredLoad]


class Growth:
    """Measures all loads of a server. Its methods block; not for the event loop's thread."""

    def __init__(self, meter: Meter | None = None, share: Callable[[int], int] | None = None) -> None:
        self._meter = meter or Meter()
        self._share = share or _with_children
        self._lock = threading.Lock()
        self._under_way: list[MeasuredLoad] = []
        self._ended: list[MeasuredLoad] = []
        self._spans: list[_Span] = []
        self._last = 0

    def begin(self, directory: Path) -> MeasuredLoad:
        """Begin a load of the files in `directory`. Each call needs one call of `end`."""
        load = MeasuredLoad(files_of(directory).size)
        with self._lock:
            self._look()
            self._under_way.append(load)
        return load

    def end(
        self, load: MeasuredLoad, processes: Sequence[int] = (), on_measured: Callable[[int], None] | None = None
    ) -> Callable[[], None]:
        """End a load. `processes`: other processes that run the model.

        The returned function passes all sizes known by now to the `on_measured` of their loads.
        """
        load.own = bool(processes)
        load.elsewhere = sum(self._share(pid) for pid in processes)
        load.on_measured = on_measured
        with self._lock:
            self._look()
            self._under_way.remove(load)
            self._ended.append(load)
            if self._under_way:
                return _nothing
            spans, ended, self._spans, self._ended = self._spans, self._ended, [], []
        if not self._last:
            return _nothing  # the system does not report memory
        _divide(spans)
        return lambda: _report(ended)

    def _look(self) -> None:
        self._meter.trim()
        last, self._last = self._last, self._meter.own()
        if self._under_way:
            self._spans.append(_Span(self._last - last, tuple(self._under_way)))


def _divide(spans: Sequence[_Span]) -> None:
    """Divide the growth of the process among the loads."""
    together, sharing = 0, dict[MeasuredLoad, None]()
    for grown, loads in spans:
        here = [each for each in loads if not each.own]
        if len(here) == 1:
            here[0].grown += grown
        elif here:
            together += grown
            sharing |= dict.fromkeys(here)
    weights = {each: max(_LEAST, each.files - each.grown) for each in sharing}
    whole = sum(weights.values())
    for each, weight in weights.items():
        each.grown += together * weight / whole


def _report(loads: Sequence[MeasuredLoad]) -> None:
    for load in loads:
        if load.on_measured is not None:
            load.on_measured(load.elsewhere + max(0, round(load.grown)))


def _with_children(pid: int) -> int:
    """Return the proportional share of memory of a process and its descendants."""
    return share_of(pid) + sum(share_of(each) for each in children(pid))


def _nothing() -> None: ...


_log = logging.getLogger(__name__)

PATIENCE_NS = 1_000_000_000
"""Longest time to wait for other models to become idle by themselves."""
BLOCKED_NS = 3 * PATIENCE_NS
WAIT_NS = 30_000_000_000
_MOST_NAMED = 5
"""Maximum number of models named in a refusal."""


class TooLargeError(ModserveError):
    """The model alone exceeds the limit: retrying does not help."""


class ResidentModel(Protocol):
    """The budget's view of a model that is in memory, entering or leaving it."""

    id: ModelId
    held: int
    """Bytes that count against the limit. Written only by the budget."""
    size: int
    """Last measured size in bytes; 0 while unknown. Written only by the budget."""
    files: int
    last_used_ns: int

    @property
    def movable(self) -> bool:
        """True if it is in memory, not pinned and not leaving."""

    @property
    def at_work(self) -> str:
        """Current activity, as text; empty if none."""

    @property
    def borrowed(self) -> bool:
        """True if other holders may use it at any time."""

    @property
    def calls(self) -> bool:
        """Return whether its engine is calling another model, and may be waiting for that to be loaded."""

    @property
    def interruptible(self) -> bool:
        """True if its work ends without new requests: it has no sequences or loans."""

    @property
    def holds(self) -> str:
        """Reason that it stays in memory, as text."""

    async def wait_until_relieved(self) -> None:
        """Wait until it is no longer at work; if it is not, until it is no longer borrowed."""

    def hold_back(self, on: bool) -> None:
        """Hold back new requests, or let them through again."""

    def leave(self, why: str) -> "asyncio.Task[None]":
        """Begin to leave memory. `held` is 0 when the task has ended."""

    async def make(self) -> Servable:
        """Load the model."""


class ModelMemory:
    """Memory budget of one server, on the event loop's thread. Blocking measurements run on a thread."""

    def __init__(
        self,
        limit: int,
        clock: Clock,
        meter: Meter | None = None,
        *,
        wait_ns: int = WAIT_NS,
        run: Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]] = asyncio.to_thread,
    ) -> None:
        self.limit = limit
        """Limit in bytes; 0 for none."""
        self._clock = clock
        self._meter = meter or Meter()
        self._wait_ns = wait_ns
        self._run = run
        self._occupants: dict[ResidentModel, None] = {}
        self._loading: dict[ResidentModel, int] = {}
        """Occupants being loaded, each with the bytes of other models loaded meanwhile."""
        self._queue: dict[ResidentModel, int] = {}
        """Occupants waiting for room, in order, each with the time until which it blocks others."""
        self._changed = asyncio.Event()
        self._tasks = Background("model_memory")

    def __repr__(self) -> str:
        return f"ModelMemory({megabytes(self.held)} of {megabytes(self.limit)}, {len(self._occupants)} models)"

    @property
    def held(self) -> int:
        return sum(each.held for each in self._occupants)

    def has(self, name: str) -> bool:
        """True if a version of a model is in memory."""
        return any(each.id.name == name for each in self._occupants)

    @property
    def report(self) -> MemoryReport:
        return MemoryReport(self.limit, self.held)

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run work that outlives its caller."""
        return self._tasks.start(work)

    def wake_waiting(self) -> None:
        """Wake the waiting occupants: there may be room now."""
        self._changed.set()
        self._changed = asyncio.Event()

    # Loading

    def check(self, occupant: ResidentModel) -> None:
        """Raise `TooLargeError` for a model that cannot fit, by its measured size or else its files."""
        size = occupant.size or occupant.files
        if self.limit and size > self.limit:
            by = "as measured when it was loaded" if occupant.size else "its files alone"
            raise self._too_large(occupant, size, by)

    async def load(
        self, occupant: ResidentModel, on_begin: Callable[[], None], on_wait: Callable[[], None]
    ) -> Servable:
        """Make room for a model, load and measure it.

        `on_begin` is called when there is room, `on_wait` when the room turns out too small. Raises `TooLargeError`,
        UNAVAILABLE if no room could be made in time, and the errors of the load.
        """
        self.check(occupant)
        self._occupants[occupant] = None
        end_ns = self._clock.now_ns() + self._wait_ns
        try:
            while True:
                await self._make_room(occupant, occupant.size or occupant.files, end_ns)
                while not all(each.calls for each in self._loading):
                    await self._changed.wait()
                self._loading[occupant] = 0
                try:
                    on_begin()
                    servable = await self._make_and_measure(occupant)
                finally:
                    del self._loading[occupant]
                    self.wake_waiting()
                try:
                    if await self._fits_now(occupant):
                        return servable
                except BaseException:  # the caller was cancelled
                    await servable.close()
                    raise
                await self._let_go(servable, occupant)
                del servable
                on_wait()
                self.check(occupant)
        except BaseException:
            self.forget(occupant)
            raise

    async def _make_and_measure(self, occupant: ResidentModel) -> Servable:
        before = await self._run(self._meter.before)
        servable = await occupant.make()
        try:
            grown = await self._run(partial(self._meter.after, before))
        except BaseException:
            await servable.close()
            raise
        # Other requests run meanwhile: memory that they free must not make a model look smaller than its files.
        own = max(grown - self._loading[occupant], occupant.files)
        occupant.size = occupant.held = own
        for each in self._loading:
            self._loading[each] += own
        return servable

    async def _fits_now(self, occupant: ResidentModel) -> bool:
        """Evict others until a loaded model fits; return False if it cannot stay."""
        while self._excess(occupant, occupant.held) > 0:
            if occupant.held > self.limit:
                return False
            victims = self._choose(occupant, occupant.held)
            if not victims:
                return False
            await self._leave(victims, occupant)
        return True

    async def _let_go(self, servable: Servable, occupant: ResidentModel) -> None:
        _log.info(
            "model '%s', version %d: needs %s, more than there is room for at the moment", *occupant.id, _mb(occupant)
        )
        try:
            await servable.close()  # not in use yet
        except Exception:
            _log.exception("model '%s', version %d: closing its engine failed", *occupant.id)
        del servable
        await self._run(self._meter.trim)
        occupant.held = 0

    async def _make_room(self, occupant: ResidentModel, size: int, end_ns: int) -> None:
        """Return when a model of this size is accounted for. Raises UNAVAILABLE after `end_ns`."""
        held_back: list[ResidentModel] = []
        begin_ns = self._clock.now_ns()
        patient_ns = min(begin_ns + PATIENCE_NS, end_ns)
        self._queue[occupant] = begin_ns + BLOCKED_NS
        try:
            while not (first := self._is_first(occupant)) or self._excess(occupant, size) > 0:
                now_ns = self._clock.now_ns()
                if first and (victims := self._choose(occupant, size)):
                    await self._leave(victims, occupant)
                    continue
                if now_ns >= end_ns or (first and self._is_hopeless(occupant, size)):
                    raise self._refusal(occupant, size)
                if first and now_ns >= patient_ns and not held_back:
                    held_back = self._prefix(
                        [each for each in self._others(occupant) if each.interruptible], occupant, size
                    )
                    for each in held_back:
                        each.hold_back(True)
                await self._something(
                    min(each for each in (*self._queue.values(), patient_ns, end_ns) if each > now_ns)
                )
            occupant.held = size
        finally:
            del self._queue[occupant]
            self.wake_waiting()
            for each in held_back:
                each.hold_back(False)

    def _is_first(self, occupant: ResidentModel) -> bool:
        """True if no other occupant waits ahead of this one, except those past their blocking time."""
        now_ns = self._clock.now_ns()
        return (
            next((each for each, end_ns in self._queue.items() if each is occupant or now_ns < end_ns), None)
            is occupant
        )

    def _is_hopeless(self, occupant: ResidentModel, size: int) -> bool:
        """True if pinned models leave too little room, and no other model is entering or leaving memory."""
        others = [each for each in self._occupants if each is not occupant and each.held and not each.movable]
        if not all(each.holds for each in others):
            return False
        return size + sum(each.held for each in others) > self.limit > 0

    async def _something(self, until_ns: int) -> None:
        """Return when a model has become idle, entered or left memory, or at `until_ns`."""
        timer = self._clock.call_at(until_ns, self.wake_waiting)
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[Any]] = [loop.create_task(self._changed.wait())]
        tasks += [loop.create_task(_quietly(each)) for each in self._occupants if each.at_work or each.borrowed]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            for task in tasks:
                task.cancel()

    # Eviction and closing

    def forget(self, occupant: ResidentModel) -> None:
        """Remove an occupant without memory."""
        occupant.held = 0
        self._occupants.pop(occupant, None)
        self.wake_waiting()

    async def close(self, servable: Servable, occupant: ResidentModel) -> None:
        """Close an unused model, and return its memory to the system."""
        try:
            await servable.drain()
            await servable.close()
        except Exception:  # the engine counts as closed even so
            _log.exception("model '%s', version %d: closing its engine failed", *occupant.id)
        finally:
            del servable
            try:
                await self._run(self._meter.trim)
            finally:
                self.forget(occupant)

    async def _leave(self, victims: Sequence[ResidentModel], occupant: ResidentModel) -> None:
        name, version = occupant.id
        leaving = [each.leave(f"to make room for model '{name}', version {version}") for each in victims]
        await asyncio.wait(leaving)

    # Candidates

    def _others(self, occupant: ResidentModel) -> list[ResidentModel]:
        """Return the occupants that could leave for this one once idle, least recently used first."""
        others = [each for each in self._occupants if each is not occupant and each.movable]
        return sorted(others, key=lambda each: each.last_used_ns)

    def _excess(self, occupant: ResidentModel, size: int) -> int:
        """Return the bytes by which an occupant of this size would exceed the limit; 0 or less if it fits."""
        return self.held - occupant.held + size - self.limit if self.limit else 0

    def _choose(self, occupant: ResidentModel, size: int) -> list[ResidentModel]:
        """Choose the occupants to evict so that an occupant of this size fits; none if too few can leave."""
        idle = [each for each in self._others(occupant) if not each.at_work]
        chosen = self._prefix([each for each in idle if not each.borrowed], occupant, size)
        if not chosen and not any(each.at_work for each in self._occupants):
            chosen = self._prefix(sorted(idle, key=lambda each: (each.borrowed, each.last_used_ns)), occupant, size)
        return chosen

    def _prefix(self, candidates: Sequence[ResidentModel], occupant: ResidentModel, size: int) -> list[ResidentModel]:
        """Return the first candidates with enough memory in total; none if all together have too little."""
        excess, chosen = self._excess(occupant, size), list[ResidentModel]()
        for each in candidates:
            if excess <= 0:
                break
            chosen.append(each)
            excess -= each.held
        return chosen if excess <= 0 else []

    # Messages

    def _too_large(self, occupant: ResidentModel, size: int, by: str) -> TooLargeError:
        name, version = occupant.id
        text = (
            f"model '{name}' version {version} needs {megabytes(size)} of memory ({by}), more than "
            f"--model-memory-limit allows all models together, {megabytes(self.limit)}"
        )
        return TooLargeError(unavailable(text).code, text)

    def _refusal(self, occupant: ResidentModel, size: int) -> OverloadedError:
        holders = sorted((each for each in self._occupants if each is not occupant), key=lambda each: -each.held)
        said = [
            f"'{each.id.name}' version {each.id.version} ({_mb(each)}: {each.holds or 'loading or being evicted'})"
            for each in holders[:_MOST_NAMED]
        ]
        if more := len(holders) - len(said):
            said.append(f"{more} more")
        name, version = occupant.id
        return OverloadedError(
            f"there is no memory for model '{name}' version {version}, which needs {megabytes(size)} of the "
            f"{megabytes(self.limit)} that --model-memory-limit allows; in memory: {', '.join(said) or 'none'}",
            PATIENCE_NS,
        )


async def _quietly(occupant: ResidentModel) -> None:
    try:
        await occupant.wait_until_relieved()
    except Exception:
        _log.exception("model '%s', version %d: cannot be waited for", *occupant.id)


def _mb(occupant: ResidentModel) -> str:
    return megabytes(occupant.held)
