"""GPU memory that another process shares, through the library of the CUDA driver.

Tensors are copied between it and the host, but for outputs that are in the memory of the same GPU.
"""

import ctypes
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from modserve.core.errors import ModserveError, internal, invalid, unavailable
from modserve.core.tensors import dlpack
from modserve.core.tensors.shared_memory import CudaRegion
from modserve.core.tensors.tensor import Buffer, DeviceTensor, Tensor

_log = logging.getLogger(__name__)

HANDLE_BYTES = 64
"""The size of a ``cudaIpcMemHandle_t``, which is the driver's ``CUipcMemHandle``."""

_LAZY_PEER_ACCESS = 1


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


_SIGNATURES: dict[str, tuple[type, ...]] = {
    "cuInit": (ctypes.c_uint,),
    "cuDeviceGetCount": (ctypes.c_void_p,),
    "cuDeviceGet": (ctypes.c_void_p, ctypes.c_int),
    "cuDevicePrimaryCtxRetain": (ctypes.c_void_p, ctypes.c_int),
    "cuCtxPushCurrent_v2": (ctypes.c_void_p,),
    "cuCtxPopCurrent_v2": (ctypes.c_void_p,),
    "cuIpcOpenMemHandle_v2": (ctypes.c_void_p, _Handle, ctypes.c_uint),
    "cuIpcCloseMemHandle": (ctypes.c_uint64,),
    "cuMemGetAddressRange_v2": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64),
    "cuMemcpyDtoH_v2": (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t),
    "cuMemcpyHtoD_v2": (ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t),
    "cuMemcpyDtoD_v2": (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t),
    "cuStreamSynchronize": (ctypes.c_void_p,),
    "cuGetErrorName": (ctypes.c_int, ctypes.c_void_p),
}
"""Function of the driver → its parameters. Each function returns 0 for success."""

_DEFERRED = frozenset({"cuMemcpyHtoD_v2", "cuMemcpyDtoD_v2"})
"""Copies that may return early (CUDA driver API, "API synchronization behavior").

A copy from pageable memory returns once that is staged, and a copy inside the GPU at once.
"""

_OUT_OF_MEMORY = 2
_BROKEN = frozenset({3, 4, 46, 100, 214, 220, 999, *range(700, 722)})
"""Codes of a driver or a GPU that does not work for any call (cuda.h, ``CUresult``)."""


def load_driver() -> ctypes.CDLL | None:
    """Return the driver's library with its signatures; None if there is none."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        for name, parameters in _SIGNATURES.items():
            getattr(library, name).argtypes = parameters
    except (OSError, AttributeError):
        return None
    return library


class Cuda:
    """The GPUs of this machine. The first use of GPU memory loads the driver."""

    def __init__(self, load: Callable[[], ctypes.CDLL | None] = load_driver) -> None:
        self._driver = functools.cache(lambda: _find(load))
        self._lock = threading.Lock()

    def open(self, region: CudaRegion, handle: bytes) -> "CudaMemory":
        """Return the memory behind a handle from another process. Raises INVALID_ARG."""
        if len(handle) != HANDLE_BYTES:
            raise invalid("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
        with self._lock:
            driver = self._driver()
        if driver is None:
            raise invalid(f"failed to register CUDA shared memory region: '{region.name}', GPUs not supported")
        return CudaMemory(driver, region, handle)


class _DriverError(Exception):
    """A function of the driver failed."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class _Driver:
    """The library, and a context for each device in use."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self._lock = threading.Lock()
        """Lock against two threads that both retain the context of a device."""

    def call(self, name: str, *arguments: object) -> None:
        """Raises `_DriverError`."""
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(text))
            meaning = f" ({text.value.decode()})" if text.value else ""
            raise _DriverError(f"{name} failed with CUDA error {code}{meaning}", code)

    @contextmanager
    def on(self, device_id: int) -> Iterator[None]:
        """Calls inside use this device. Raises `_DriverError` if there is no such device."""
        with self._lock:
            context = self._contexts.get(device_id)
            if context is None:
                device, context = ctypes.c_int(), ctypes.c_void_p()
                self.call("cuDeviceGet", ctypes.byref(device), device_id)
                self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
                self._contexts[device_id] = context
        self.call("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


def _find(load: Callable[[], ctypes.CDLL | None]) -> _Driver | None:
    """Return the driver, if it has a device."""
    library = load()
    if library is None:
        return None
    driver, count = _Driver(library), ctypes.c_int()
    try:
        driver.call("cuInit", 0)
        driver.call("cuDeviceGetCount", ctypes.byref(count))
    except _DriverError as error:
        _log.warning("the CUDA driver cannot be used: %s", error)
        return None
    return driver if count.value else None


class CudaMemory:
    """Implements `shared_memory.Memory`; `read` returns a copy."""

    def __init__(self, driver: _Driver, region: CudaRegion, handle: bytes) -> None:
        self._driver = driver
        self._region = region
        self._address = ctypes.c_uint64()
        refused = invalid(f"failed to register shared memory region '{region.name}': invalid args")
        if not 0 <= region.device_id < 2**31 or region.byte_size < 1:
            raise refused
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        try:
            with driver.on(region.device_id):
                shared = _Handle.from_buffer_copy(handle)
                driver.call("cuIpcOpenMemHandle_v2", ctypes.byref(self._address), shared, _LAZY_PEER_ACCESS)
                try:
                    driver.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), self._address)
                    if region.byte_size > base.value + size.value - self._address.value:
                        raise refused
                except BaseException:
                    driver.call("cuIpcCloseMemHandle", self._address)
                    raise
        except _DriverError as error:
            _log.warning("CUDA shared memory region '%s' was not registered: %s", region.name, error)
            raise _refusal(region, error) or refused from None

    def read(self, offset: int, size: int) -> Buffer:
        data = bytearray(size)
        if size:
            target = (ctypes.c_char * size).from_buffer(data)
            self._copy("cuMemcpyDtoH_v2", ctypes.byref(target), self._address.value + offset, size)
        return data

    def write(self, offset: int, raw: Buffer) -> None:
        if len(raw):
            self._copy("cuMemcpyHtoD_v2", self._address.value + offset, bytes(raw), len(raw))

    def copy(self, offset: int, tensor: Tensor) -> bool:
        """Write a tensor that is in the memory of this GPU, without gaps. False, and nothing written, for any other."""
        if type(tensor) is not DeviceTensor or tensor.device != (dlpack.CUDA, self._region.device_id):
            return False
        layout = tensor.layout
        if not layout.in_rows:
            return False
        if tensor.size:
            self._copy("cuMemcpyDtoD_v2", self._address.value + offset, layout.address, tensor.size)
        return True

    def close(self) -> None:
        try:
            with self._driver.on(self._region.device_id):
                self._driver.call("cuIpcCloseMemHandle", self._address)
        except _DriverError as error:
            _log.warning("CUDA shared memory region '%s' was not closed: %s", self._region.name, error)

    def _copy(self, name: str, *arguments: object) -> None:
        try:
            with self._driver.on(self._region.device_id):
                self._driver.call(name, *arguments)
                if name in _DEFERRED:  # and the client, in another process, reads as soon as it has the answer
                    self._driver.call("cuStreamSynchronize", None)
        except _DriverError as error:
            raise internal(f"CUDA shared memory region '{self._region.name}': {error}") from None


def _refusal(region: CudaRegion, error: _DriverError) -> ModserveError | None:
    """Return the error for a region that cannot be opened; None where the driver blames what the client sent."""
    text = f"failed to register CUDA shared memory region '{region.name}': {error}"
    if error.code == _OUT_OF_MEMORY:
        return unavailable(text)
    return internal(text) if error.code in _BROKEN else None
