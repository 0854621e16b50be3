"""Registered regions: what can be registered, who uses them, and when they go."""

import contextlib
import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modserve.core.errors import Code, ModserveError
from modserve.core.tensors.shared_memory import CudaRegion, RegionSlice, SystemRegion
from modserve.resources.cuda import Cuda
from modserve.resources.shared_memory import SharedMemory

PAGE = mmap.ALLOCATIONGRANULARITY
CONTENT = bytes(range(64))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where shared memory is: `a` has the numbers from 0 to 63."""
    (tmp_path / "a").write_bytes(CONTENT)
    return tmp_path


@pytest.fixture
def memory(directory: Path) -> SharedMemory:
    return SharedMemory(True, directory=directory, most=3, cuda=Cuda(lambda: None))


def region(name: str = "r", key: str = "/a", offset: int = 0, byte_size: int = 64) -> SystemRegion:
    return SystemRegion(name, key, offset, byte_size)


def refusal(call: Callable[..., Any], *arguments: Any) -> tuple[Code, str]:
    with pytest.raises(ModserveError) as caught:
        call(*arguments)
    return caught.value.code, caught.value.message


def read(memory: SharedMemory, place: RegionSlice) -> bytes:
    lease = memory.lease()
    try:
        return bytes(lease.read(place))
    finally:
        lease.release()


# Registering


@pytest.mark.parametrize("key", ["a", "/a", "//a"])
def test_slashes_before_a_key_do_not_count(memory: SharedMemory, key: str) -> None:
    memory.register_system(region(key=key))
    assert read(memory, RegionSlice("r", 0, 64)) == CONTENT
    assert memory.status(SystemRegion) == [region(key=key)]


@pytest.mark.parametrize(("offset", "size"), [(0, 1), (3, 10), (63, 1), (PAGE, 8), (PAGE + 5, 8)])
def test_a_region_may_begin_anywhere(memory: SharedMemory, directory: Path, offset: int, size: int) -> None:
    content = os.urandom(2 * PAGE)
    (directory / "big").write_bytes(content)
    memory.register_system(region(key="big", offset=offset, byte_size=size))
    assert read(memory, RegionSlice("r", 0, size)) == content[offset : offset + size]


INVALID_ARGS = "failed to register shared memory region 'r': invalid args"


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (region(key="/nosuch"), "Unable to open shared memory region: '/nosuch'"),
        (region(key=""), "cannot register shared memory region 'r' - invalid shm key ''"),
        (region(key="/"), "cannot register shared memory region 'r' - invalid shm key '/'"),
        (region(key="///"), "cannot register shared memory region 'r' - invalid shm key '///'"),
        (region(key=".."), "Unable to open shared memory region: '..'"),
        (region(key="/../a"), "Unable to open shared memory region: '/../a'"),
        (region(key="sub/a"), "Unable to open shared memory region: 'sub/a'"),
        (region(key="sub"), "Unable to open shared memory region: 'sub'"),
        (region(key="link"), "Unable to open shared memory region: 'link'"),
        (region(key="pipe"), "Unable to open shared memory region: 'pipe'"),
        (region(key="a\0b"), "Unable to open shared memory region: 'a\0b'"),
        (region(key="\ud800"), "Unable to open shared memory region: '\\ud800'"),
        (region(key="x" * 300), f"Unable to open shared memory region: '{'x' * 300}'"),
        (region(name=""), "'region name' is necessary to register system shared memory region"),
        (region(byte_size=0), INVALID_ARGS),
        (region(byte_size=-1), INVALID_ARGS),
        (region(byte_size=65), INVALID_ARGS),
        (region(offset=-1), INVALID_ARGS),
        (region(offset=1), INVALID_ARGS),
        (region(offset=64, byte_size=1), INVALID_ARGS),
        (region(offset=2**64 - 1, byte_size=2**64 - 1), INVALID_ARGS),
        (
            region(key="/triton_python_backend_shm_region_1"),
            "cannot register shared memory region 'r' with key '/triton_python_backend_shm_region_1' as the key "
            "contains the reserved prefix 'triton_python_backend_shm_region_'",
        ),
    ],
)
def test_what_can_not_be_registered(memory: SharedMemory, directory: Path, asked: SystemRegion, text: str) -> None:
    (directory / "sub").mkdir()
    (directory / "sub" / "a").write_bytes(CONTENT)
    (directory / "link").symlink_to(directory / "a")
    (directory / "triton_python_backend_shm_region_1").write_bytes(CONTENT)
    os.mkfifo(directory / "pipe")
    assert refusal(memory.register_system, asked) == (Code.INVALID_ARG, text)
    assert memory.status(SystemRegion) == []


def test_names_are_taken_once(memory: SharedMemory) -> None:
    memory.register_system(region())
    taken = (Code.ALREADY_EXISTS, "shared memory region 'r' already in manager")
    assert refusal(memory.register_system, region()) == taken
    assert refusal(memory.register_cuda, CudaRegion("r", 0, 8), bytes(64)) == taken


def test_there_is_a_limit(memory: SharedMemory) -> None:
    for name in "xyz":
        memory.register_system(region(name))
    code, text = refusal(memory.register_system, region())
    assert code is Code.UNAVAILABLE
    assert "there are 3 already" in text
    memory.unregister(SystemRegion, "x")
    memory.register_system(region())


def test_without_permission_nothing_is_registered(directory: Path) -> None:
    memory = SharedMemory(directory=directory)
    disabled = (
        Code.UNSUPPORTED,
        "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.",
    )
    assert refusal(memory.register_system, region()) == disabled
    assert refusal(memory.register_cuda, CudaRegion("r", 0, 8), bytes(64)) == disabled
    assert refusal(memory.unregister, SystemRegion) == disabled
    assert refusal(memory.unregister, CudaRegion, "r") == disabled
    assert not memory.status(SystemRegion)
    assert not memory.status(CudaRegion)
    assert refusal(memory.lease().read, RegionSlice("r", 0, 8))[0] is Code.NOT_FOUND


# Status and unregistering


def test_status_of_regions(memory: SharedMemory) -> None:
    second, first = region("y", offset=4, byte_size=8), region("x")
    memory.register_system(second)
    memory.register_system(first)
    assert memory.status(SystemRegion) == [first, second]
    assert memory.status(SystemRegion, "y") == [second]
    assert memory.status(CudaRegion) == []
    assert repr(memory) == "SharedMemory(['x', 'y'])"


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        (SystemRegion, "z", "Unable to find system shared memory region: 'z'"),
        (CudaRegion, "z", "Unable to find cuda shared memory region: 'z'"),
        (CudaRegion, "r", "The region named 'r' is registered as system shared memory, not CUDA shared memory"),
    ],
)
def test_status_of_what_is_not_there(memory: SharedMemory, kind: Any, name: str, text: str) -> None:
    memory.register_system(region())
    assert refusal(memory.status, kind, name) == (Code.NOT_FOUND, text)


def test_unregistering(memory: SharedMemory) -> None:
    for name in "xyz":
        memory.register_system(region(name))
    memory.unregister(SystemRegion, "y")
    memory.unregister(SystemRegion, "nobody")
    memory.unregister(CudaRegion, "x")
    memory.unregister(CudaRegion)
    assert [each.name for each in memory.status(SystemRegion)] == ["x", "z"]
    memory.unregister(SystemRegion)
    assert memory.status(SystemRegion) == []


def test_the_memory_of_the_client_stays(memory: SharedMemory, directory: Path) -> None:
    memory.register_system(region())
    memory.unregister(SystemRegion)
    assert (directory / "a").read_bytes() == CONTENT


def test_nothing_stays_open(memory: SharedMemory, directory: Path) -> None:
    def opened() -> int:
        found = 0
        for entry in os.scandir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # another thread's, closed meanwhile
                found += os.readlink(entry.path) == str(directory / "a")
        return found

    memory.register_system(region())
    assert opened() == 1
    assert "Unable to open" in refusal(memory.register_system, region("s", key="b"))[1]
    assert "invalid args" in refusal(memory.register_system, region("s", byte_size=65))[1]
    assert opened() == 1
    memory.unregister(SystemRegion)
    assert opened() == 0


# Use


def test_a_region_in_use_goes_with_its_last_user(memory: SharedMemory) -> None:
    memory.register_system(region("x"))
    memory.register_system(region("y"))
    first, second = memory.lease(), memory.lease()
    first.read(RegionSlice("x", 0, 8))
    first.read(RegionSlice("x", 8, 8))
    second.reserve(RegionSlice("x", 0, 8))
    memory.unregister(SystemRegion)
    assert [each.name for each in memory.status(SystemRegion)] == ["x"]
    first.release()
    first.release()
    assert [each.name for each in memory.status(SystemRegion)] == ["x"]
    second.release()
    assert memory.status(SystemRegion) == []
    memory.register_system(region("x"))


def test_a_region_that_goes_is_lent_to_nobody_else(memory: SharedMemory) -> None:
    """Or under steady use it would never go."""
    memory.register_system(region())
    before = memory.lease()
    before.read(RegionSlice("r", 0, 8))
    memory.unregister(SystemRegion)
    assert refusal(memory.lease().read, RegionSlice("r", 0, 8)) == (
        Code.NOT_FOUND,
        "Unable to find shared memory region: 'r'",
    )
    before.read(RegionSlice("r", 8, 8))  # who has it has all of it
    before.release()
    assert memory.status(SystemRegion) == []


def test_the_name_of_a_region_that_goes_may_be_registered_again(memory: SharedMemory, directory: Path) -> None:
    (directory / "b").write_bytes(CONTENT[::-1])
    memory.register_system(region())
    before = memory.lease()
    before.read(RegionSlice("r", 0, 8))
    memory.unregister(SystemRegion)
    memory.register_system(region(key="b"))
    assert read(memory, RegionSlice("r", 0, 64)) == CONTENT[::-1]
    assert memory.status(SystemRegion) == [region(key="b")]
    memory.register_system(region("s"))
    assert refusal(memory.register_system, region("t"))[0] is Code.UNAVAILABLE  # the one that goes counts
    before.release()
    memory.register_system(region("t"))
    assert [each.name for each in memory.status(SystemRegion)] == ["r", "s", "t"]


def test_what_was_read_outlives_the_region(memory: SharedMemory) -> None:
    """A cancelled request is over, but its execution may go on."""
    memory.register_system(region())
    lease = memory.lease()
    view = lease.read(RegionSlice("r", 16, 16))
    lease.release()
    memory.unregister(SystemRegion)
    assert bytes(view) == CONTENT[16:32]


def test_what_is_read_is_no_copy_and_not_to_be_written(memory: SharedMemory, directory: Path) -> None:
    memory.register_system(region())
    view = memory.lease().read(RegionSlice("r", 4, 4))
    with (directory / "a").open("r+b") as file:
        file.seek(4)
        file.write(b"abcd")
    assert isinstance(view, memoryview)
    assert (bytes(view), view.readonly) == (b"abcd", True)


def test_writing(memory: SharedMemory, directory: Path) -> None:
    memory.register_system(region(offset=8, byte_size=16))
    lease = memory.lease()
    place = RegionSlice("r", 4, 8)
    lease.reserve(place)
    lease.write(place, b"abc")
    assert (directory / "a").read_bytes() == CONTENT[:12] + b"abc" + CONTENT[15:]


def test_only_what_was_reserved_is_written(memory: SharedMemory) -> None:
    memory.register_system(region())
    assert "this is a bug" in refusal(memory.lease().write, RegionSlice("r", 0, 8), b"")[1]


OFFSET = "Invalid offset for shared memory region: 'r'"
SIZE = "Invalid offset + byte size for shared memory region: 'r'"
OVERFLOW = (
    "Integer overflow detected: byte_size ({}) + offset ({}) exceeds maximum value (18446744073709551615) for "
    "region 'r'"
)


@pytest.mark.parametrize(
    ("offset", "size", "text"),
    [
        (-1, 4, OFFSET),
        (16, 0, OFFSET),
        (2**64, 0, OFFSET),
        (0, 17, SIZE),
        (15, 2, SIZE),
        (0, -1, SIZE),
        (0, 2**64 - 1, SIZE),
        (1, 2**64 - 2, SIZE),
        (1, 2**64 - 1, OVERFLOW.format(18446744073709551615, 1)),
        (8, -8, OVERFLOW.format(18446744073709551608, 8)),
        (16, 2**64 - 1, OFFSET),
    ],
)
def test_places_outside_the_region(memory: SharedMemory, offset: int, size: int, text: str) -> None:
    memory.register_system(region(byte_size=16))
    lease = memory.lease()
    assert refusal(lease.read, RegionSlice("r", offset, size)) == (Code.INVALID_ARG, text)
    assert refusal(lease.reserve, RegionSlice("r", offset, size)) == (Code.INVALID_ARG, text)
    lease.release()
    memory.unregister(SystemRegion)
    assert memory.status(SystemRegion) == []


def test_regions_that_are_not_there(memory: SharedMemory) -> None:
    expected = (Code.NOT_FOUND, "Unable to find shared memory region: 'r'")
    assert refusal(memory.lease().read, RegionSlice("r", 0, 8)) == expected


@pytest.mark.parametrize(("left", "has"), [(40, 32), (8, 0), (0, 0)])
def test_memory_that_was_made_smaller_is_not_touched(
    memory: SharedMemory, directory: Path, left: int, has: int
) -> None:
    memory.register_system(region(offset=8, byte_size=48))
    lease = memory.lease()
    lease.reserve(RegionSlice("r", 0, 48))
    os.truncate(directory / "a", left)
    expected = (
        Code.INVALID_ARG,
        "shared memory region 'r' was registered with 48 bytes; '/a' has been made smaller since and has "
        f"{has} of them",
    )
    assert refusal(lease.read, RegionSlice("r", 16, 32)) == expected
    assert refusal(lease.write, RegionSlice("r", 0, 48), bytes(48)) == expected


def test_threads_may_share_it(directory: Path) -> None:
    memory = SharedMemory(True, directory=directory)
    memory.register_system(region())

    def use() -> None:
        for _ in range(200):
            assert read(memory, RegionSlice("r", 0, 64)) == CONTENT

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    memory.unregister(SystemRegion)
    assert memory.status(SystemRegion) == []


# Tenants


def test_names_are_a_tenants_own(memory: SharedMemory, directory: Path) -> None:
    (directory / "b").write_bytes(CONTENT[::-1])
    memory.register_system(SystemRegion("r", "/a", 0, 64, "alice"))
    memory.register_system(SystemRegion("r", "/b", 0, 64, "bob"))
    alice, bob = memory.lease("alice"), memory.lease("bob")
    assert bytes(alice.read(RegionSlice("r", 0, 64))) == CONTENT
    assert bytes(bob.read(RegionSlice("r", 0, 64))) == CONTENT[::-1]
    assert refusal(memory.lease().read, RegionSlice("r", 0, 64))[0] is Code.NOT_FOUND
    alice.release()
    bob.release()


def test_a_tenant_lists_and_unregisters_its_own_regions_only(memory: SharedMemory) -> None:
    for tenant in ("", "alice", "bob"):
        memory.register_system(SystemRegion("r", "/a", 0, 64, tenant))
    assert [each.tenant for each in memory.status(SystemRegion, tenant="alice")] == ["alice"]
    assert refusal(memory.status, SystemRegion, "x", "alice")[0] is Code.NOT_FOUND
    memory.unregister(SystemRegion, tenant="alice")
    assert memory.status(SystemRegion, tenant="alice") == []
    memory.unregister(SystemRegion, "r", "bob")
    assert memory.status(SystemRegion, tenant="bob") == []
    assert memory.status(SystemRegion) == [region()]
