"""Memory that clients of benchmarks/gpu.py share with the server: the system's, or a GPU's by the CUDA driver."""

import base64
import ctypes
import itertools
import mmap
import os
from pathlib import Path
from typing import Any, Protocol

from modserve.resources.cuda import HANDLE_BYTES, load_driver

_SHM = Path("/dev/shm")
_ALIGNMENT = 2 * 1024 * 1024
"""CUDA shares whole blocks of 2 MiB with another process, and asks for allocations of that size (Programming Guide)."""
_numbers = itertools.count()


class Region(Protocol):
    kind: str
    """In the paths of the protocol."""
    registration: dict[str, object]
    """The body of the call that registers it."""

    def write(self, data: bytes) -> None:
        """From the beginning on."""

    def read(self, offset: int, size: int) -> bytes: ...

    def close(self) -> None: ...


class SystemRegion:
    kind = "systemsharedmemory"

    def __init__(self, size: int) -> None:
        key = f"modserve-gpu-benchmark-{os.getpid()}-{next(_numbers)}"
        self._path = _SHM / key
        descriptor = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            os.ftruncate(descriptor, size)
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self.registration: dict[str, object] = {"key": f"/{key}", "offset": 0, "byte_size": size}

    def write(self, data: bytes) -> None:
        self._map[: len(data)] = data

    def read(self, offset: int, size: int) -> bytes:
        return self._map[offset : offset + size]

    def close(self) -> None:
        self._map.close()
        self._path.unlink()


class NoGpuError(Exception):
    """There is no GPU, or its driver does not work; the text says what is missing."""


class Gpu:
    """One device, by the driver's own interface: no package of CUDA is needed. Raises NoGpuError."""

    def __init__(self, device: int = 0, library: Any = None) -> None:
        self._library = load_driver() if library is None else library
        if self._library is None:
            raise NoGpuError("there is no driver of NVIDIA (libcuda.so.1)")
        self.device = device
        count, number, self._context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGetCount", ctypes.byref(count))
        if device >= count.value:
            raise NoGpuError(f"there is no GPU {device}: the driver has {count.value}")
        self._call("cuDeviceGet", ctypes.byref(number), device)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), number)
        text = ctypes.create_string_buffer(128)
        self._call("cuDeviceGetName", text, 128, number)
        self.name = text.value.decode()
        version = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(version))
        self.cuda_version = f"{version.value // 1000}.{version.value % 1000 // 10}"

    def allocate(self, size: int) -> "GpuRegion":
        return GpuRegion(self, size)

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise NoGpuError(f"{name} failed with CUDA error {code}")

    def call(self, name: str, *arguments: object) -> None:
        """In the device's context, and done when this returns. Raises NoGpuError."""
        self._call("cuCtxPushCurrent_v2", self._context)
        try:
            self._call(name, *arguments)
            self._call("cuStreamSynchronize", None)
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


class GpuRegion:
    """Implements `Region`."""

    kind = "cudasharedmemory"

    def __init__(self, gpu: Gpu, size: int) -> None:
        self._gpu = gpu
        self._address = ctypes.c_uint64()
        whole = -(-size // _ALIGNMENT) * _ALIGNMENT
        gpu.call("cuMemAlloc_v2", ctypes.byref(self._address), ctypes.c_size_t(whole))
        handle = ctypes.create_string_buffer(HANDLE_BYTES)
        try:
            gpu.call("cuIpcGetMemHandle", handle, self._address)
        except NoGpuError:
            self.close()
            raise
        self.registration: dict[str, object] = {
            "raw_handle": {"b64": base64.b64encode(handle.raw).decode()},
            "device_id": gpu.device,
            "byte_size": size,
        }

    def write(self, data: bytes) -> None:
        self._gpu.call("cuMemcpyHtoD_v2", self._address.value, data, len(data))

    def read(self, offset: int, size: int) -> bytes:
        target = ctypes.create_string_buffer(size)
        self._gpu.call("cuMemcpyDtoH_v2", target, self._address.value + offset, size)
        return target.raw

    def close(self) -> None:
        self._gpu.call("cuMemFree_v2", self._address)
