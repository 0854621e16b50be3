"""An engine in a child process behind a socket pair, driven from the event loop: it doubles, and 13 makes it exit."""

import contextlib
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from modserve.backends.api import (
    BatchDone,
    EngineRequest,
    InstanceHandle,
    InstanceLostError,
    InstanceSpec,
    ModelSource,
    RequestsDone,
)
from modserve.core.configuration.model_config import ModelDescription
from modserve.core.tensors.tensor import Array

WORKER = """
import os, socket, struct, sys
import numpy as np

stream = socket.socket(fileno=int(sys.argv[1])).makefile("rwb")
while head := stream.read(8):
    values = np.frombuffer(stream.read(struct.unpack("<II", head)[1]), np.float32)
    if 13 in values:
        os._exit(3)
    stream.write(head + (values * 2).tobytes())
    stream.flush()
"""


class Process:
    """The part without a model: numbered messages there and back."""

    max_in_flight = 4

    def __init__(self, backend: "ProcessBackend", spec: InstanceSpec) -> None:
        self.spec = spec
        self._backend = backend
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(theirs.fileno())], pass_fds=[theirs.fileno()]
        )
        theirs.close()
        self._received = bytearray()
        self._unsent = bytearray()
        self._under_way: dict[int, Callable[[bytes], object]] = {}
        self._number = 0

    def attach(self, handle: InstanceHandle) -> None:
        self._handle = handle
        handle.loop.add_reader(self._socket, self._read)

    def call(self, array: Array, back: Callable[[bytes], object]) -> None:
        self._number += 1
        self._under_way[self._number] = back
        self._unsent += struct.pack("<II", self._number, array.nbytes) + array.tobytes()
        self._write()

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            del self._unsent[: self._socket.send(self._unsent)]
        if self._unsent:
            self._handle.loop.add_writer(self._socket, self._write)
        else:
            self._handle.loop.remove_writer(self._socket)

    def _read(self) -> None:
        some = b""
        with contextlib.suppress(OSError):
            some = self._socket.recv(1 << 20)
        if not some:
            self._handle.lost(InstanceLostError(f"its worker ended with status {self.process.wait()}"))
            return
        self._received += some
        while len(self._received) >= 8:
            number, size = struct.unpack_from("<II", self._received)
            if len(self._received) < 8 + size:
                break
            payload = bytes(self._received[8 : 8 + size])
            del self._received[: 8 + size]
            self._under_way.pop(number)(payload)

    def detach(self) -> None:
        self._handle.loop.remove_reader(self._socket)
        self._handle.loop.remove_writer(self._socket)

    def close(self) -> None:
        self._socket.close()
        self.process.kill()
        self.process.wait()
        self._backend.closed.append(self)


class MergedProcess(Process):
    def start(self, inputs: Mapping[str, Array], outputs: tuple[str, ...], done: BatchDone) -> None:
        array = inputs["INPUT"]
        self.call(array, lambda payload: done({"OUTPUT": np.frombuffer(payload, np.float32).reshape(array.shape)}))


class RequestProcess(Process):
    def start_requests(self, requests: Sequence[EngineRequest], done: RequestsDone) -> None:
        for request in requests:
            self._begin(request)
        done(None)  # the requests are open until the worker responds

    def _begin(self, request: EngineRequest) -> None:
        array = request.inputs["INPUT"]

        def back(payload: bytes) -> None:
            request.respond({"OUTPUT": np.frombuffer(payload, np.float32).reshape(array.shape)}, wait=False)

        self.call(array, back)


class ProcessBackend:
    default_model_filename = ""
    default_cpu_instances = 1
    any_thread = False

    def __init__(self, kind: type[Process]) -> None:
        self.kind = kind
        self.made: list[Any] = []
        self.closed: list[Any] = []
        self.broken = False
        """No instance can be made any more."""

    def gpu_count(self) -> int:
        return 0

    def open(self, source: ModelSource) -> "ProcessModel":
        return ProcessModel(self)


class ProcessModel:
    def __init__(self, backend: ProcessBackend) -> None:
        self._backend = backend

    def describe(self) -> ModelDescription | None:
        return None

    def instance(self, spec: InstanceSpec) -> Any:
        if self._backend.broken:
            raise MemoryError("no memory for a worker")
        self._backend.made.append(self._backend.kind(self._backend, spec))
        return self._backend.made[-1]

    def close(self) -> None: ...
