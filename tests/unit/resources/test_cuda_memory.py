"""GPU memory, with a driver that only pretends."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_cuda import HANDLE, ILLEGAL_ADDRESS, OUT_OF_MEMORY, FakeDriver
from modserve.core.errors import Code, ModserveError
from modserve.core.tensors import dlpack
from modserve.core.tensors.shared_memory import CudaRegion, RegionSlice, SystemRegion
from modserve.core.tensors.tensor import Tensor
from modserve.resources.cuda import HANDLE_BYTES, Cuda
from modserve.resources.shared_memory import SharedMemory
from modserve.testing import FakeDevice, FakeDeviceArray


def registry(driver: FakeDriver | None) -> SharedMemory:
    return SharedMemory(True, cuda=Cuda(lambda: driver))  # type: ignore[arg-type, return-value]


def refusal(memory: SharedMemory, region: CudaRegion, handle: bytes = HANDLE) -> str:
    with pytest.raises(ModserveError) as caught:
        memory.register_cuda(region, handle)
    assert caught.value.code is Code.INVALID_ARG
    return caught.value.message


def test_tensors_are_copied_between_the_device_and_the_host() -> None:
    driver = FakeDriver()
    memory = registry(driver)
    memory.register_cuda(CudaRegion("g", 0, 32), HANDLE)
    lease = memory.lease()
    assert bytes(lease.read(RegionSlice("g", 4, 4))) == b"\4\5\6\7"
    assert bytes(lease.read(RegionSlice("g", 4, 0))) == b""
    place = RegionSlice("g", 8, 8)
    lease.reserve(place)
    lease.write(place, memoryview(b"abc"))
    lease.write(place, b"")
    assert driver.memory[7:12] == b"\7abc\x0b"
    lease.release()
    assert driver.contexts == 0


def test_what_was_written_is_there_before_the_client_is_told() -> None:
    """CUDA may return from a copy of pageable memory as soon as that is staged, and the reader is another process."""
    driver = FakeDriver()
    memory = registry(driver)
    memory.register_cuda(CudaRegion("g", 0, 32), HANDLE)
    lease, place = memory.lease(), RegionSlice("g", 0, 8)
    lease.reserve(place)
    for raw in (b"bytes", bytearray(b"array"), memoryview(b"views"), np.frombuffer(b"numpy", np.uint8).data):
        lease.write(place, raw)
        assert not driver.copying
        assert driver.memory[:5] == raw
    assert driver.calls[-2:] == ["cuMemcpyHtoD_v2", "cuStreamSynchronize"]


def test_a_region_lives_from_its_handle_to_the_end_of_its_last_request() -> None:
    driver = FakeDriver()
    memory = registry(driver)
    memory.register_cuda(CudaRegion("g", 0, 32), HANDLE)
    lease, place = memory.lease(), RegionSlice("g", 0, 8)
    lease.reserve(place)
    memory.unregister(CudaRegion, "g")
    with pytest.raises(ModserveError, match="Unable to find shared memory region: 'g'"):
        memory.lease().read(place)
    lease.read(place)
    lease.write(place, b"late")
    lease.copy(place, FakeDevice(dlpack.CUDA).tensor(np.zeros(2, np.int32)))
    assert driver.opened == 1
    lease.release()
    assert driver.calls == [
        "cuIpcOpenMemHandle_v2",
        "cuMemGetAddressRange_v2",
        "cuMemcpyDtoH_v2",
        "cuMemcpyHtoD_v2",
        "cuStreamSynchronize",
        "cuMemcpyDtoD_v2",
        "cuStreamSynchronize",
        "cuIpcCloseMemHandle",
    ]
    assert (driver.opened, driver.contexts) == (0, 0)


def test_a_tensor_of_the_same_gpu_is_copied_inside_it() -> None:
    driver, gpu = FakeDriver(), FakeDevice(dlpack.CUDA)
    memory = registry(driver)
    memory.register_cuda(CudaRegion("g", 0, 32), HANDLE)
    lease, place = memory.lease(), RegionSlice("g", 8, 8)
    lease.reserve(place)
    assert lease.copy(place, gpu.tensor(np.array([5, 6], np.int32)))
    assert driver.memory[7:17] == b"\7\5\0\0\0\6\0\0\0\x10"
    assert not driver.copying
    assert lease.copy(place, gpu.tensor(np.zeros((0, 3), np.int32)))
    assert (gpu.downloads, driver.contexts) == (0, 0)


class PyTorchArray(FakeDeviceArray):
    """Like a tensor of PyTorch, which waits for nothing unless told to, and is exported only where its GPU is current.

    The current GPU is the thread's, as in PyTorch: that of the thread that made the tensor.
    """

    def __init__(self, device: FakeDevice, there: Any) -> None:
        super().__init__(device, there)
        self.thread = threading.get_ident()
        self.computing = True

    def __dlpack__(self, *, stream: object = -1, **_: Any) -> object:
        if threading.get_ident() != self.thread:
            raise BufferError("Can't export tensors on a different CUDA device index.")
        if stream is None:  # the default stream of CUDA, on which the driver copies
            self.computing = False
        return super().__dlpack__()


def test_a_tensor_is_exported_once_by_the_thread_that_made_it() -> None:
    driver = FakeDriver(devices=2)
    memory = registry(driver)
    memory.register_cuda(CudaRegion("g", 1, 32), HANDLE)
    source = PyTorchArray(FakeDevice(dlpack.CUDA, 1), np.array([5, 6], np.int32))
    tensor, lease, place = Tensor.from_dlpack(source, source.download), memory.lease(), RegionSlice("g", 8, 8)
    lease.reserve(place)
    with ThreadPoolExecutor(1) as front_end:
        assert front_end.submit(lease.copy, place, tensor).result(30)
    assert not source.computing
    assert driver.memory[8:16] == np.array([5, 6], np.int32).tobytes()


def test_tensors_that_the_region_cannot_take_without_the_host(tmp_path: Path) -> None:
    """Of another GPU, with gaps, on the host; and those for regions of system memory."""
    driver, gpu = FakeDriver(), FakeDevice(dlpack.CUDA)
    memory = SharedMemory(True, cuda=Cuda(lambda: driver), directory=tmp_path)  # type: ignore[arg-type, return-value]
    memory.register_cuda(CudaRegion("g", 0, 32), HANDLE)
    (tmp_path / "s").write_bytes(bytes(32))
    memory.register_system(SystemRegion("s", "/s", 0, 32))
    lease, place, numbers = memory.lease(), RegionSlice("g", 8, 8), np.array([5, 6], np.int32)
    for region in ("g", "s"):
        lease.reserve(RegionSlice(region, 8, 8))
    before = bytes(driver.memory)
    assert not lease.copy(place, FakeDevice(dlpack.CUDA, 1).tensor(numbers))
    assert not lease.copy(place, FakeDevice().tensor(numbers))
    assert not lease.copy(place, gpu.tensor(np.arange(4, dtype=np.int32)[::2]))
    assert not lease.copy(place, Tensor.from_array(numbers))
    assert not lease.copy(RegionSlice("s", 8, 8), gpu.tensor(numbers))
    assert not memory.lease().copy(place, gpu.tensor(numbers))
    assert bytes(driver.memory) == before


def test_a_copy_inside_the_gpu_that_fails() -> None:
    memory = registry(FakeDriver(failing=("cuMemcpyDtoD_v2",)))
    memory.register_cuda(CudaRegion("g", 0, 32), HANDLE)
    lease, place = memory.lease(), RegionSlice("g", 8, 8)
    lease.reserve(place)
    with pytest.raises(ModserveError, match="region 'g': cuMemcpyDtoD_v2 failed with CUDA error 1") as caught:
        lease.copy(place, FakeDevice(dlpack.CUDA).tensor(np.zeros(2, np.int32)))
    assert caught.value.code is Code.INTERNAL


def test_regions_of_both_kinds_share_their_names(tmp_path: Path) -> None:
    driver = FakeDriver()
    memory = registry(driver)
    memory.register_cuda(CudaRegion("g", 0, 32), HANDLE)
    assert memory.status(CudaRegion) == memory.status(CudaRegion, "g") == [CudaRegion("g", 0, 32)]
    assert memory.status(SystemRegion) == []
    with pytest.raises(ModserveError) as caught:
        memory.status(SystemRegion, "g")
    assert (caught.value.code, caught.value.message) == (
        Code.NOT_FOUND,
        "The region named 'g' is registered as CUDA shared memory, not system shared memory",
    )
    memory.unregister(SystemRegion)
    assert driver.opened == 1
    memory.unregister(CudaRegion)
    assert (driver.opened, memory.status(CudaRegion)) == (0, [])


NO_GPU = "failed to register CUDA shared memory region: 'g', GPUs not supported"
NO_NAME = "'region name' is necessary to register cuda shared memory region"
NO_HANDLE = "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"
INVALID_ARGS = "failed to register shared memory region 'g': invalid args"


@pytest.mark.parametrize(
    ("driver", "region", "handle", "text"),
    [
        (None, CudaRegion("g", 0, 32), HANDLE, NO_GPU),
        (FakeDriver(devices=0), CudaRegion("g", 0, 32), HANDLE, NO_GPU),
        (FakeDriver(failing=("cuInit",)), CudaRegion("g", 0, 32), HANDLE, NO_GPU),
        (FakeDriver(), CudaRegion("", 0, 32), HANDLE, NO_NAME),
        (FakeDriver(), CudaRegion("g", 0, 32), HANDLE[:-1], NO_HANDLE),
        (None, CudaRegion("g", 0, 32), b"", NO_HANDLE),
        (FakeDriver(), CudaRegion("g", 0, 32), bytes(HANDLE_BYTES), INVALID_ARGS),
        (FakeDriver(), CudaRegion("g", 1, 32), HANDLE, INVALID_ARGS),
        (FakeDriver(), CudaRegion("g", -1, 32), HANDLE, INVALID_ARGS),
        (FakeDriver(), CudaRegion("g", 2**40, 32), HANDLE, INVALID_ARGS),
        (FakeDriver(), CudaRegion("g", 0, 33), HANDLE, INVALID_ARGS),
        (FakeDriver(), CudaRegion("g", 0, 0), HANDLE, INVALID_ARGS),
        (FakeDriver(failing=("cuMemGetAddressRange_v2",)), CudaRegion("g", 0, 32), HANDLE, INVALID_ARGS),
        (FakeDriver(before=16), CudaRegion("g", 0, 33), HANDLE, INVALID_ARGS),
    ],
)
def test_what_can_not_be_registered(driver: FakeDriver | None, region: CudaRegion, handle: bytes, text: str) -> None:
    memory = registry(driver)
    assert refusal(memory, region, handle) == text
    assert memory.status(CudaRegion) == []
    assert driver is None or (driver.opened, driver.contexts) == (0, 0)


@pytest.mark.parametrize(
    ("name", "code", "kind", "text"),
    [
        ("cuDevicePrimaryCtxRetain", OUT_OF_MEMORY, Code.UNAVAILABLE, "2 (CUDA_ERROR_OUT_OF_MEMORY)"),
        ("cuIpcOpenMemHandle_v2", OUT_OF_MEMORY, Code.UNAVAILABLE, "2 (CUDA_ERROR_OUT_OF_MEMORY)"),
        ("cuIpcOpenMemHandle_v2", ILLEGAL_ADDRESS, Code.INTERNAL, "700 (CUDA_ERROR_ILLEGAL_ADDRESS)"),
        ("cuIpcOpenMemHandle_v2", 999, Code.INTERNAL, "999"),
    ],
)
def test_a_gpu_that_is_full_or_broken_is_not_the_fault_of_the_client(
    name: str, code: int, kind: Code, text: str
) -> None:
    driver = FakeDriver(failing={name: code})
    memory = registry(driver)
    with pytest.raises(ModserveError) as caught:
        memory.register_cuda(CudaRegion("g", 0, 32), HANDLE)
    assert (caught.value.code, caught.value.message) == (
        kind,
        f"failed to register CUDA shared memory region 'g': {name} failed with CUDA error {text}",
    )
    assert (memory.status(CudaRegion), driver.opened, driver.contexts) == ([], 0, 0)
    driver.failing = {}
    memory.register_cuda(CudaRegion("g", 0, 32), HANDLE)
    assert driver.opened == 1


def test_a_gpu_that_breaks_under_a_region() -> None:
    driver = FakeDriver()
    memory = registry(driver)
    memory.register_cuda(CudaRegion("g", 0, 32), HANDLE)
    lease, place = memory.lease(), RegionSlice("g", 0, 8)
    lease.reserve(place)
    driver.fault = ILLEGAL_ADDRESS
    tensor = FakeDevice(dlpack.CUDA).tensor(np.zeros(2, np.int32))
    for use in (lambda: lease.read(place), lambda: lease.write(place, b"abc"), lambda: lease.copy(place, tensor)):
        with pytest.raises(ModserveError, match="CUDA error 700 \\(CUDA_ERROR_ILLEGAL_ADDRESS\\)") as caught:
            use()
        assert caught.value.code is Code.INTERNAL
    memory.unregister(CudaRegion, "g")
    lease.release()
    assert (memory.status(CudaRegion), driver.contexts) == ([], 0)


def test_copies_may_fail() -> None:
    driver = FakeDriver(failing=("cuMemcpyDtoH_v2",))
    memory = registry(driver)
    memory.register_cuda(CudaRegion("g", 0, 32), HANDLE)
    with pytest.raises(ModserveError, match="region 'g': cuMemcpyDtoH_v2 failed with CUDA error 1") as caught:
        memory.lease().read(RegionSlice("g", 0, 8))
    assert caught.value.code is Code.INTERNAL
    assert driver.contexts == 0


def test_a_region_that_can_not_be_closed_is_forgotten_nevertheless() -> None:
    driver = FakeDriver()
    memory = registry(driver)
    memory.register_cuda(CudaRegion("g", 0, 32), HANDLE)
    driver.failing = {"cuIpcCloseMemHandle": 1}
    memory.unregister(CudaRegion, "g")
    assert memory.status(CudaRegion) == []


def test_two_threads_retain_a_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    retained: list[int] = []
    both = threading.Barrier(2)
    find, retain = FakeDriver._cuDeviceGet, FakeDriver._cuDevicePrimaryCtxRetain

    def slow_find(self: FakeDriver, device: Any, ordinal: int) -> int:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.05)  # a second thread that gets here meanwhile would retain the device, too
        return find(self, device, ordinal)

    def counted(self: FakeDriver, context: Any, device: Any) -> None:
        retained.append(device.value)
        retain(self, context, device)

    monkeypatch.setattr(FakeDriver, "_cuDeviceGet", slow_find)
    monkeypatch.setattr(FakeDriver, "_cuDevicePrimaryCtxRetain", counted)
    driver = FakeDriver()
    cuda = Cuda(lambda: driver)  # type: ignore[arg-type, return-value]
    with ThreadPoolExecutor(2) as threads:
        for opening in [threads.submit(cuda.open, CudaRegion(name, 0, 8), HANDLE) for name in "ab"]:
            opening.result(30)
    assert retained == [0]


Slow = tuple[FakeDriver, threading.Semaphore, threading.Event]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    """A driver that says when it is begun to be used, and goes on when it may."""
    began, go_on = threading.Semaphore(0), threading.Event()

    def init(self: FakeDriver, flags: int) -> None:
        began.release()
        assert go_on.wait(30)

    monkeypatch.setattr(FakeDriver, "_cuInit", init)
    return FakeDriver(), began, go_on


def test_nobody_waits_while_the_driver_is_looked_for(slow: Slow) -> None:
    """It may take a second, and everything else about regions happens on the event loop's thread."""
    driver, began, go_on = slow
    memory = registry(driver)
    with ThreadPoolExecutor(1) as threads:
        registering = threads.submit(memory.register_cuda, CudaRegion("g", 0, 8), HANDLE)
        assert began.acquire(timeout=30)
        # On a thread, so that a failure is no hang.
        asking = ThreadPoolExecutor(1)
        try:
            assert asking.submit(memory.status, CudaRegion).result(10) == []
        finally:
            go_on.set()
            asking.shutdown()
        registering.result(30)
    assert memory.status(CudaRegion) == [CudaRegion("g", 0, 8)]


def test_of_two_regions_with_one_name_that_are_registered_at_once_one_stays(slow: Slow) -> None:
    driver, began, go_on = slow
    memory = registry(driver)
    both = threading.Barrier(3)

    def register() -> str:
        both.wait(30)
        try:
            memory.register_cuda(CudaRegion("g", 0, 8), HANDLE)
        except ModserveError as error:
            return error.message
        return ""

    with ThreadPoolExecutor(2) as threads:
        registering = [threads.submit(register) for _ in range(2)]
        both.wait(30)
        assert began.acquire(timeout=30)
        go_on.set()
        told = sorted(each.result(30) for each in registering)
    assert told == ["", "shared memory region 'g' already in manager"]
    assert driver.opened == 1
    memory.unregister(CudaRegion, "g")
    assert driver.opened == 0
