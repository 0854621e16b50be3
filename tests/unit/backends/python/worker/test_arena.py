"""Shared memory of a server and a worker, both in this process."""

import fcntl
import gc
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from modserve.backends.python.worker import wire
from modserve.backends.python.worker.arena import IDLE_SECONDS, Arena, Mirror, new_file
from modserve.backends.python.worker.wire import Location


class Both:
    def __init__(self) -> None:
        self.fd = new_file("test")
        self.owner = Arena(self.fd, wire.SERVERS)
        self.reader = Mirror(self.fd)

    def give_back(self) -> None:
        """What the reader has released reaches the owner."""
        for offset in self.reader.take_released():
            self.owner.release(offset)

    @property
    def pages(self) -> int:
        """Bytes of memory that the file takes."""
        return os.fstat(self.fd).st_blocks * 512


@pytest.fixture
def both() -> Iterator[Both]:
    both = Both()
    yield both
    os.close(both.fd)


def text(array: Any) -> bytes:
    return bytes(array)


def test_what_one_side_writes_the_other_reads(both: Both) -> None:
    places = [both.owner.place(bytes([number]) * 5000, 5000) for number in range(3)]
    views = [both.reader.fetch(place) for place in places]
    assert [text(view) for view in views] == [bytes([number]) * 5000 for number in range(3)]
    assert len({place.offset for place in places}) == 3


def test_a_lease_ends_with_the_last_reference(both: Both) -> None:
    place = both.owner.place(b"x" * 8000, 8000)
    view = memoryview(both.reader.fetch(place))
    part = view[100:200].cast("B")
    array = np.frombuffer(part, np.int16)[::2]
    del view, part
    assert both.reader.take_released() == []
    del array
    assert both.reader.take_released() == [place.offset]
    assert both.reader.take_released() == []


def test_a_block_is_used_again_when_all_leases_are_over(both: Both) -> None:
    place = both.owner.place(b"x" * 8000, 8000)
    view = both.reader.fetch(place)
    own = both.owner.hold(place)  # the other side has sent it back
    assert both.owner.place(b"y" * 8000, 8000).offset != place.offset
    del view
    both.give_back()
    assert both.owner.place(b"y" * 8000, 8000).offset != place.offset
    assert text(own) == b"x" * 8000
    del own
    assert both.owner.place(b"z" * 8000, 8000).offset == place.offset
    assert text(both.reader.fetch(place)) == b"z" * 8000


def test_sizes_that_are_nearly_the_same_share_blocks(both: Both) -> None:
    place = both.owner.place(bytes(1_000_000), 1_000_000)
    del_lease(both, place)
    again = both.owner.place(bytes(930_000), 930_000)
    assert (again.offset, again.size) == (place.offset, 930_000)
    assert again.capacity <= 1.3 * 1_000_000


def del_lease(both: Both, place: Location) -> None:
    view = both.reader.fetch(place)
    del view
    both.give_back()


def test_memory_grows_and_shrinks(both: Both) -> None:
    places = [both.owner.place(bytes(100_000), 100_000) for _ in range(20)]
    views = [both.reader.fetch(place) for place in places]
    assert both.owner.leased >= 2_000_000
    assert both.pages >= 2_000_000
    del views[1:]
    both.give_back()
    assert both.owner.leased < 200_000
    both.owner.trim(now=0.0)
    assert both.pages >= 2_000_000  # somebody may need them again soon
    both.owner.trim(now=time.monotonic() + IDLE_SECONDS + 1)
    assert both.pages < 200_000
    assert both.owner.mapped < 200_000
    forgotten = both.owner.take_forgotten()
    assert sorted(forgotten) == sorted(place.offset for place in places[1:])
    for offset in forgotten:
        both.reader.forget(offset)
    again = both.owner.place(b"again" * 20_000, 100_000)
    assert again.offset in forgotten
    assert text(both.reader.fetch(again)) == b"again" * 20_000
    assert text(views[0]) == bytes(100_000)


def test_a_forgotten_block_stays_while_somebody_reads_it(both: Both) -> None:
    place = both.owner.place(b"x" * 8000, 8000)
    view = both.reader.fetch(place)
    both.reader.forget(place.offset)
    gc.collect()
    assert text(view) == b"x" * 8000


def test_memory_of_the_other_side_is_recognised(both: Both) -> None:
    place = both.owner.place(bytes(range(100)) * 100, 10_000)
    view = both.reader.fetch(place)
    address = view[300:].__array_interface__["data"][0]
    assert both.reader.find(address, 200) == (place.offset, place.capacity, 300)
    assert both.reader.find(address, 100_000) is None
    elsewhere = np.zeros(10)
    assert both.reader.find(elsewhere.__array_interface__["data"][0], 10) is None


@pytest.mark.parametrize(
    "place",
    [
        Location(wire.SERVERS, 1 << 40, 4096, 0, 10),  # beyond the end
        Location(wire.SERVERS, 4097, 4096, 0, 10),  # no page
        Location(wire.SERVERS, 4096, 8192, 8000, 1000),  # beyond its block
    ],
)
def test_places_that_there_are_not(both: Both, place: Location) -> None:
    both.owner.place(bytes(8000), 8000)
    with pytest.raises(ValueError, match="block"):
        both.reader.fetch(place)


def test_own_blocks_that_are_free_cannot_be_held(both: Both) -> None:
    place = both.owner.place(bytes(8000), 8000)
    del_lease(both, place)
    assert both.owner.leased == 0
    with pytest.raises(ValueError, match="in use"):
        both.owner.hold(place)
    with pytest.raises(ValueError, match="in use"):
        both.owner.hold(place._replace(offset=1 << 30))


def test_nothing_is_left_behind_by_name(both: Both) -> None:
    both.owner.place(bytes(100_000), 100_000)
    assert os.fstat(both.fd).st_size >= 100_000
    assert os.fstat(both.fd).st_nlink == 0, "it has a name, which would outlive a process that is killed"


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the system has no such files")
def test_the_file_grows_but_never_shrinks(both: Both) -> None:
    places = [both.owner.place(b"x" * size, size) for size in (5000, 1 << 20)]
    with pytest.raises(PermissionError):
        os.ftruncate(both.fd, 0)
    with pytest.raises(PermissionError):  # nor can anyone keep it from growing
        fcntl.fcntl(both.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    assert [len(both.reader.fetch(place)) for place in places] == [5000, 1 << 20]
    place = both.owner.place(b"y" * (4 << 20), 4 << 20)
    assert text(both.reader.fetch(place)[-1:]) == b"y"
    for each in (*places, place):
        both.owner.release(each.offset)
    both.owner.trim(time.monotonic() + IDLE_SECONDS + 1)
    assert both.pages == 0


def test_what_is_mapped_is_counted_while_another_thread_allocates(both: Both) -> None:
    both.owner.place(b"x" * 5000, 5000)
    others: list[threading.Thread] = []

    class Watched(dict[int, Any]):
        def values(self) -> Any:
            for block in super().values():
                if not others:
                    others.append(threading.Thread(target=both.owner.allocate, args=(1 << 20,)))
                    others[0].start()
                    others[0].join(0.05)  # it may go on now, or only when the count is over
                yield block

    both.owner._blocks = Watched(both.owner._blocks)
    assert both.owner.mapped >= 5000
    others[0].join()
    assert both.owner.mapped > 1 << 20


def test_a_place_is_looked_for_while_another_thread_fetches(both: Both) -> None:
    kept = [both.reader.fetch(both.owner.place(bytes(size), size)) for size in (5000, 9000)]
    late = both.owner.place(bytes(20_000), 20_000)

    class Watched(dict[int, Any]):
        def items(self) -> Any:
            for item in super().items():
                kept.append(both.reader.fetch(late))
                yield item

    both.reader._mappings = Watched(both.reader._mappings)
    address = kept[1].__array_interface__["data"][0]
    assert both.reader.find(address, 9000) is not None
