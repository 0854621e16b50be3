"""A driver of CUDA that only pretends, and that does things as late as a real one may."""

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

from modserve.resources.cuda import HANDLE_BYTES

HANDLE = bytes(range(HANDLE_BYTES))
ADDRESS = 0x7F00_0000
INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONTEXT, ILLEGAL_ADDRESS = 1, 2, 201, 700
_NAMES = {
    INVALID_VALUE: b"CUDA_ERROR_INVALID_VALUE",
    OUT_OF_MEMORY: b"CUDA_ERROR_OUT_OF_MEMORY",
    INVALID_CONTEXT: b"CUDA_ERROR_INVALID_CONTEXT",
    ILLEGAL_ADDRESS: b"CUDA_ERROR_ILLEGAL_ADDRESS",
}
_WITHOUT_CONTEXT = ("cuInit", "cuDevice", "cuDriver", "cuCtx", "cuGetError")
_AFTER_A_FAULT = ("cuGetErrorName", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2")


class FakeDriver:
    """Devices, and one allocation on the device whose context is current when `HANDLE` is opened.

    `memory` is what other processes see of the allocation. Copies into it are queued on the default stream, as the
    driver may do with those from pageable memory and does with those inside a GPU; they end when that stream is
    synchronised, or read from. `before` bytes of the allocation are before what `HANDLE` opens. Functions in `failing`
    fail with that code. After a `fault`, as of a kernel that has accessed illegal memory, nearly everything fails.
    """

    def __init__(self, devices: int = 1, failing: Mapping[str, int] | tuple[str, ...] = (), before: int = 0) -> None:
        self.devices = devices
        self.failing = failing if isinstance(failing, Mapping) else dict.fromkeys(failing, INVALID_VALUE)
        self.before = before
        self.memory = bytearray(range(32))
        self.opened = 0
        self.allocated = 0
        self.fault = 0
        self.calls: list[str] = []
        """All but those that look for a device or change the context."""
        self._context: list[int] = []
        self._home = 0
        """The context in which the handle was opened."""
        self._queue: list[Callable[[], None]] = []

    @property
    def contexts(self) -> int:
        """Contexts that are still current."""
        return len(self._context)

    @property
    def copying(self) -> bool:
        """Whether a copy has not ended."""
        return bool(self._queue)

    def __getattr__(self, name: str) -> Any:
        function = type(self).__dict__.get("_" + name)
        if function is None:
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            if not name.startswith(_WITHOUT_CONTEXT):
                self.calls.append(name)
                if not self._context:
                    return INVALID_CONTEXT
            if self.fault and name not in _AFTER_A_FAULT:
                return self.fault
            return self.failing.get(name) or function(self, *arguments) or 0

        return call

    def _cuInit(self, flags: int) -> None:
        assert flags == 0

    def _cuGetErrorName(self, code: int, text: Any) -> int:
        if code not in _NAMES:
            return INVALID_VALUE
        text._obj.value = _NAMES[code]
        return 0

    def _cuDeviceGetCount(self, count: Any) -> None:
        count._obj.value = self.devices

    def _cuDeviceGet(self, device: Any, ordinal: int) -> int:
        device._obj.value = ordinal
        return 0 if ordinal < self.devices else 101

    def _cuDeviceGetName(self, text: Any, size: int, device: Any) -> None:
        text.value = f"Fake GPU {device.value}".encode()

    def _cuDriverGetVersion(self, version: Any) -> None:
        version._obj.value = 13010

    def _cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> None:
        context._obj.value = 0x1000 + device.value

    def _cuCtxPushCurrent_v2(self, context: Any) -> None:
        assert context.value >= 0x1000
        self._context.append(context.value)

    def _cuCtxPopCurrent_v2(self, context: Any) -> None:
        self._context.pop()

    def _cuMemAlloc_v2(self, address: Any, size: Any) -> None:
        """The allocation that there is."""
        address._obj.value = ADDRESS
        self._home = self._context[-1]
        self.allocated = size.value

    def _cuMemFree_v2(self, address: Any) -> None:
        assert address.value == ADDRESS
        assert not self.copying
        self.allocated = 0

    def _cuIpcGetMemHandle(self, handle: Any, address: Any) -> None:
        assert address.value == ADDRESS
        handle.raw = HANDLE

    def _cuIpcOpenMemHandle_v2(self, address: Any, handle: Any, flags: int) -> int:
        if bytes(handle) != HANDLE:
            return INVALID_VALUE
        address._obj.value = ADDRESS
        self._home = self._context[-1]
        self.opened += 1
        return 0

    def _cuIpcCloseMemHandle(self, address: Any) -> None:
        assert address.value == ADDRESS
        assert not self.copying
        self._check_context()
        self.opened -= 1

    def _cuMemGetAddressRange_v2(self, base: Any, size: Any, address: Any) -> None:
        if base is not None:
            base._obj.value = ADDRESS - self.before
        size._obj.value = self.before + len(self.memory)

    def _cuMemcpyDtoH_v2(self, host: Any, address: int, size: int) -> None:
        self._check_context()
        self._end_copies()  # which are before it on the same stream
        start = address - ADDRESS
        ctypes.memmove(host, bytes(self.memory[start : start + size]), size)

    def _cuMemcpyHtoD_v2(self, address: int, host: bytes, size: int) -> None:
        self._check_context()
        staged = ctypes.string_at(host, size)
        self._queue.append(lambda: self._put(address, staged))

    def _cuMemcpyDtoD_v2(self, address: int, source: int, size: int) -> None:
        self._check_context()
        self._queue.append(lambda: self._put(address, ctypes.string_at(source, size)))

    def _cuStreamSynchronize(self, stream: Any) -> None:
        assert stream is None
        self._end_copies()

    def _check_context(self) -> None:
        assert self._context[-1] == self._home

    def _put(self, address: int, data: bytes) -> None:
        start = address - ADDRESS
        self.memory[start : start + len(data)] = data

    def _end_copies(self) -> None:
        queue, self._queue = self._queue, []
        for copy in queue:
            copy()
