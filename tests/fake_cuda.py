"""A driver of CUDA that only pretends."""

import ctypes
from typing import Any

from modserve.resources.cuda import HANDLE_BYTES

HANDLE = bytes(range(HANDLE_BYTES))
ADDRESS = 0x7F00_0000


class FakeDriver:
    """One device with one allocation, which `HANDLE` opens; functions in `failing` fail."""

    def __init__(self, devices: int = 1, failing: tuple[str, ...] = ()) -> None:
        self.devices = devices
        self.failing = failing
        self.memory = bytearray(range(32))
        self.opened = 0
        self.contexts = 0

    def __getattr__(self, name: str) -> Any:
        function = type(self).__dict__.get("_" + name)
        if function is None:
            raise AttributeError(name)
        return lambda *arguments: 1 if name in self.failing else function(self, *arguments) or 0

    def _cuInit(self, flags: int) -> None:
        assert flags == 0

    def _cuDeviceGetCount(self, count: Any) -> None:
        count._obj.value = self.devices

    def _cuDeviceGet(self, device: Any, ordinal: int) -> int:
        device._obj.value = ordinal
        return 0 if ordinal < self.devices else 101

    def _cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> None:
        context._obj.value = 0x1000 + device.value

    def _cuCtxPushCurrent_v2(self, context: Any) -> None:
        assert context.value >= 0x1000
        self.contexts += 1

    def _cuCtxPopCurrent_v2(self, context: Any) -> None:
        self.contexts -= 1

    def _cuIpcOpenMemHandle_v2(self, address: Any, handle: Any, flags: int) -> int:
        if bytes(handle) != HANDLE:
            return 1
        address._obj.value = ADDRESS
        self.opened += 1
        return 0

    def _cuIpcCloseMemHandle(self, address: Any) -> None:
        assert address.value == ADDRESS
        self.opened -= 1

    def _cuMemGetAddressRange_v2(self, base: Any, size: Any, address: Any) -> None:
        size._obj.value = len(self.memory)

    def _cuMemcpyDtoH_v2(self, host: Any, address: int, size: int) -> None:
        start = address - ADDRESS
        ctypes.memmove(host, bytes(self.memory[start : start + size]), size)

    def _cuMemcpyHtoD_v2(self, address: int, host: bytes, size: int) -> None:
        start = address - ADDRESS
        self.memory[start : start + size] = host[:size]

    def _cuMemcpyDtoD_v2(self, address: int, source: int, size: int) -> None:
        start = address - ADDRESS
        self.memory[start : start + size] = ctypes.string_at(source, size)
        self.copying = True

    def _cuStreamSynchronize(self, stream: Any) -> None:
        assert stream is None
        self.copying = False

    copying = False
