"""GPUs for PyTorch that only pretend: the CPU computes, and an order that nothing guarantees on a GPU is a `Race`.

Streams have vector clocks. A step of a stream happens after those before it on that stream, after those of streams that
it waits for, and after all that the host has synchronised with. Whoever touches memory must come after the last step
that wrote to it, and memory is freed after its last step on other streams than the one that it was allocated on: the
caching allocator hands it out again at once (PyTorch, "CUDA semantics", CUDA streams).
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map


class Race(AssertionError):
    """Two steps touch the same memory, and nothing says which one is first."""


class FakeStream:
    def __init__(self, gpus: "FakeGpus", index: int) -> None:
        self.gpus = gpus
        self.index = index
        self.clock: dict[FakeStream, int] = {}

    def step(self) -> int:
        """The number of the next step, which happens after everything that the host knows of."""
        _merge(self.clock, self.gpus.host)
        self.clock[self] = self.clock.get(self, 0) + 1
        return self.clock[self]

    def wait_stream(self, other: "FakeStream") -> None:
        self.gpus.events.append("wait")
        _merge(self.clock, other.clock)

    def synchronize(self) -> None:
        self.gpus.events.append("synchronize")
        if self.gpus.failure:
            raise RuntimeError(self.gpus.failure)
        self._reached()

    def _reached(self) -> None:
        _merge(self.gpus.host, self.clock)


def _merge(clock: dict[FakeStream, int], other: dict[FakeStream, int]) -> None:
    for stream, step in other.items():
        clock[stream] = max(step, clock.get(stream, 0))


class _Memory:
    """Of one storage on a GPU."""

    def __init__(self, stream: FakeStream) -> None:
        self.stream = stream
        self.written: tuple[FakeStream, int] | None = None
        self.used: dict[FakeStream, int] = {}

    def use(self, stream: FakeStream, step: int, *, writes: bool) -> None:
        if self.written is not None:
            writer, when = self.written
            if stream.clock.get(writer, 0) < when:
                raise Race("memory is used by a stream that has not waited for the one that wrote it")
        self.used[stream] = step
        if writes:
            self.written = stream, step

    def __del__(self) -> None:
        gpus = self.stream.gpus
        _merge(self.stream.clock, gpus.host)
        if any(self.stream.clock.get(stream, 0) < step for stream, step in self.used.items()):
            gpus.races.append("memory is freed while a stream uses it that its allocator does not know of")


class GpuTensor(torch.Tensor):  # type: ignore[misc]
    """A tensor that says it is on a GPU; what it holds is in `there`."""

    there: Any
    memory: _Memory

    @staticmethod
    def __new__(cls, there: Any, memory: _Memory) -> "GpuTensor":
        made: Any = torch.Tensor._make_wrapper_subclass(
            cls, there.size(), strides=there.stride(), dtype=there.dtype, device=f"cuda:{memory.stream.index}"
        )
        made.there = there
        made.memory = memory
        return made  # type: ignore[no-any-return]

    def __init__(self, there: Any, memory: _Memory) -> None: ...

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} of a tensor on a fake GPU, outside of it")


class FakeGpus(TorchDispatchMode):  # type: ignore[misc]
    """Two GPUs. To be entered by the thread that loads or executes. With `failure`, all kernels fail with that text."""

    def __init__(self) -> None:
        super().__init__()
        self.host: dict[FakeStream, int] = {}
        """What the host has seen done."""
        self.events: list[str] = []
        self.races: list[str] = []
        self.failure = ""
        self.defaults = [FakeStream(self, index) for index in range(2)]
        self._current = list(self.defaults)
        self._device = 0

    def current(self, device: Any = None) -> FakeStream:
        return self._current[self._index(device)]

    @contextlib.contextmanager
    def on_stream(self, stream: FakeStream) -> Iterator[None]:
        before, device = self._current[stream.index], self._device
        self._current[stream.index], self._device = stream, stream.index
        yield
        self._current[stream.index], self._device = before, device

    @contextlib.contextmanager
    def on_device(self, device: Any) -> Iterator[None]:
        before, self._device = self._device, self._index(device)
        yield
        self._device = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        inputs = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, GpuTensor)]
        target = kwargs.get("device")
        devices = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.device)]
        if not inputs and all(each.type != "cuda" for each in devices):
            return func(*args, **kwargs)
        if func is torch.ops.aten._has_compatible_shallow_copy_type.default:
            return False  # a module puts a new parameter in the place of the old one
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:  # such operators come in one piece in inference mode
                return func.decompose(*args, **kwargs)
        if self.failure:
            raise RuntimeError(self.failure)
        stream = self.current(inputs[0].device if inputs else target)
        step = stream.step()
        written = _written(func, args, kwargs)
        memories = {}
        for each in inputs:
            each.memory.use(stream, step, writes=each in written)
            memories[each.there.untyped_storage().data_ptr()] = each.memory
        if target is not None:
            kwargs["device"] = torch.device("cpu")
        blocking = not kwargs.pop("non_blocking", False)
        result = func(*tree_map(_there, args), **tree_map(_there, kwargs))
        if target is not None and target.type == "cpu":
            assert blocking, "a copy to the host is read before it is done"
            self.events.append("to host")
            stream._reached()
            return result
        if target is not None:
            self.events.append("to device")
            if blocking:
                stream._reached()

        def wrapped(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            memory = memories.get(value.untyped_storage().data_ptr())
            if memory is None:
                memory = _Memory(stream)
                memory.use(stream, step, writes=True)
            return GpuTensor(value, memory)

        return tree_map(wrapped, result)

    def _index(self, device: Any) -> int:
        index = device if isinstance(device, int) else getattr(device, "index", None)
        return self._device if index is None else index


def _there(value: Any) -> Any:
    return value.there if isinstance(value, GpuTensor) else value


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    schema = func._schema.arguments
    values = [*zip(schema, args, strict=False), *((each, kwargs[each.name]) for each in schema if each.name in kwargs)]
    return [value for each, value in values if each.alias_info is not None and each.alias_info.is_write]


def install(monkeypatch: pytest.MonkeyPatch) -> FakeGpus:
    """Fake GPUs in place of `torch.cuda`."""
    gpus = FakeGpus()
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus.defaults))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream(gpus, device.index))
    monkeypatch.setattr(torch.cuda, "stream", gpus.on_stream)
    monkeypatch.setattr(torch.cuda, "device", gpus.on_device)
    monkeypatch.setattr(torch.cuda, "current_stream", gpus.current)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: gpus.events.append("empty cache"))
    return gpus
