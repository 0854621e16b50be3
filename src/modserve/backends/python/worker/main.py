"""A worker: one instance of a Python model in its own process.

The main thread runs the model. It waits for frames and executes batches one after another. If ``execute`` is a
coroutine function, the main thread runs an event loop instead, with any number of concurrent batches for decoupled
models. The process ends at the server's command, or when the server is gone.
"""

import asyncio
import atexit
import contextlib
import faulthandler
import fcntl
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from typing import Any, Callable, Deque, Dict, List, NoReturn, Optional, Tuple

from . import host, library_path, wire
from . import model as python_model
from .errors import ErrorCode, ModelError, TritonError
from .failure import of_exception
from .link import Link, ServerLostError
from .records import OutgoingRecord, Status
from .remote import RemoteHost, RemoteRequest, batch, entry
from .request import InferenceRequest, InferenceTrace
from .response import InferenceResponse
from .tensor import Tensor
from .wire import Frame, MessageKind

_FAILED_TURN = 70
"""Exit status after a failure of the model outside of requests."""
_F_SETSIG = 10
"""Linux fcntl command: sets the signal to send in place of SIGIO."""


def main(sock: int, servers_memory: int, workers_memory: int, lifeline: int, ready: int) -> NoReturn:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    library_path.restore()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    _die_with_server(lifeline)
    for fd in (sock, servers_memory, workers_memory, ready):
        # The model's child programs must not keep the connection open after this process ends. They inherit the
        # lifeline, which ends them as well.
        os.set_inheritable(fd, False)
    link = Link(socket.socket(fileno=sock), servers_memory, workers_memory)
    of_readiness = socket.socket(fileno=ready)
    os.register_at_fork(after_in_child=link.leave_to_parent)
    os.register_at_fork(after_in_child=of_readiness.close)
    worker = WorkerLoop(link, of_readiness)
    try:
        worker.run()
    except ServerLostError as error:
        if not link.forked:
            # If the server lives, the model closed or broke a descriptor that it did not open: log that.
            with contextlib.suppress(OSError):
                os.write(2, f"the connection to the server has ended: {error}\n".encode())
        os._exit(1)
    _exit()


def _die_with_server(lifeline: int) -> None:
    """End this process and its children when the server's end of the pipe `lifeline` closes.

    The kernel sends the signal, even while the model hangs in native code. Where unsupported, a thread waits instead.
    """
    if sys.platform == "linux":
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
        poll = select.poll()  # select() takes no file descriptors above 1023
        poll.register(lifeline, select.POLLIN)
        if poll.poll(0):
            os._exit(1)  # already closed
    else:
        threading.Thread(target=lambda: (os.read(lifeline, 1), os._exit(1)), daemon=True).start()


def _exit() -> NoReturn:
    """End the process without waiting for threads and processes that the model left behind."""
    try:
        processes = sys.modules.get("multiprocessing")
        for child in processes.active_children() if processes is not None else ():
            child.terminate()  # multiprocessing would wait for it
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0)


class WorkerLoop:
    """Executes the server's frames with the model."""

    def __init__(self, link: Link, ready: socket.socket) -> None:
        self._link = link
        self._ready = ready
        self._work: Deque[Frame] = deque()
        self._model: python_model.LoadedModel
        self._decoupled = False
        self._turn: Optional[Callable[[], bool]] = None
        self._answers: Dict[int, Callable[[Any], Any]] = {
            MessageKind.HELLO: lambda _: wire.VERSION,
            MessageKind.START: self._start,
            MessageKind.COMPLETE: lambda config: self._model.auto_complete_config(config),
            MessageKind.INITIALIZE: self._initialize,
        }
        self._server = RemoteHost(link, self._work.append)
        host.set_of_process(self._server)

    def run(self) -> None:
        """Process the server's frames until STOP."""
        work = self._work
        while True:
            if not work:
                self._wait()
            frame = work.popleft()
            kind = frame[0]
            if kind == MessageKind.EXECUTE:
                self._execute(frame)
            elif kind == MessageKind.STOP:
                break
            else:
                self._respond(kind, wire.read_json(frame[3]))
                if kind == MessageKind.INITIALIZE and self._model.is_async:
                    asyncio.run(self._run_async())
                    break
        self._finalize()

    def _wait(self) -> None:
        """Wait for work. A model with its own turns takes them meanwhile, each with all requests received so far."""
        link, more = self._link, True
        while not self._work:
            if more and self._turn is not None:
                more = self._turn()
                link.look()
            else:
                link.wait(lambda: self._work)

    def _take_turn(self) -> bool:
        """Run one turn of the model and then send its messages. A failed turn ends the process."""
        self._link.hold(True)
        try:
            return self._model.turn()
        except ModelError:  # already logged
            self._link.hold(False)
            os._exit(_FAILED_TURN)
        finally:
            self._link.hold(False)

    def _respond(self, kind: int, question: Any) -> None:
        try:
            result = {"value": self._answers[kind](question)}
        except ModelError as error:
            result = {"code": error.code, "message": error.message, "traceback": error.traceback}
        except ServerLostError:
            raise
        except BaseException as error:
            message = f"{type(error).__name__}: {error}"
            result = {"code": "INTERNAL", "message": message, "traceback": traceback.format_exc()}
        self._link.send(wire.json_frame(MessageKind.RESULT, result))

    # The life of the model

    def _start(self, question: Dict[str, Any]) -> None:
        self._model = python_model.load(of_host=self._server, **question)

    def _initialize(self, question: Dict[str, Any]) -> Dict[str, Any]:
        self._decoupled = self._server.decoupled = question["decoupled"]
        model = self._model
        model.initialize(question["arguments"])
        if model.has_turns:
            self._turn = self._take_turn
        if model.has_is_ready:
            threading.Thread(target=self._say_ready, name="is_ready", daemon=True).start()
        return {"is_ready": model.has_is_ready, "is_async": model.is_async, "room": model.room}

    def _finalize(self) -> None:
        if not hasattr(self, "_model"):  # loading failed
            return
        try:
            self._model.finalize()
        except ModelError as error:
            self._server.log("ERROR", error.traceback or error.message)

    def _say_ready(self) -> None:
        while self._ready.recv(1):
            try:
                ready = self._model.is_ready()
            except ModelError as error:
                self._server.log("ERROR", error.traceback or error.message)
                ready = False
            self._ready.sendall(b"1" if ready else b"0")

    # Execution

    def _execute(self, frame: Frame) -> None:
        handles: List[RemoteRequest] = []
        requests = self._requests(frame, handles)
        del frame
        numbers = tuple([handle.number for handle in handles])
        self._server.executing = numbers
        token = batch.set(numbers)
        responses: List[Optional[InferenceResponse]] = []
        failure = None
        try:
            responses = self._model.execute(requests)
        except ModelError as error:
            failure = self._report_error(error)
        batch.reset(token)
        self._server.executing = ()
        # Memory no longer used by the model is released together with the responses.
        requests.clear()
        self._finish(handles, responses, failure)

    def _requests(self, frame: Frame, handles: List[RemoteRequest]) -> List[InferenceRequest]:
        server, decoupled = self._server, self._decoupled
        requests = []
        for number, _, description, extras, id, elements in self._link.records(frame):
            handle = RemoteRequest(server, number)
            handles.append(handle)
            inputs = [
                Tensor.make_unchecked(name, datatype, shape, raw)
                for (name, datatype, shape, _), raw in zip(description.tensors, elements)
            ]
            if "trace" in extras:
                extras["trace"] = InferenceTrace(extras["trace"])
            requests.append(
                InferenceRequest.make_unchecked(handle, inputs, description.outputs, id, decoupled=decoupled, **extras)
            )
        return requests

    def _report_error(self, error: ModelError) -> InferenceResponse:
        if error.traceback:
            self._server.log("ERROR", error.traceback)
        return InferenceResponse.make_unchecked([], TritonError(error.message, ErrorCode[error.code]))

    def _finish(
        self,
        handles: List[RemoteRequest],
        responses: List[Optional[InferenceResponse]],
        failure: Optional[InferenceResponse],
    ) -> None:
        settled = [
            (handle, failure or (responses[index] if responses else None))
            for index, handle in enumerate(handles)
            if not handle.ended
        ]
        for handle, response in settled:
            handle.ended = response is not None
        try:
            self._send_executed(settled)
        except Exception as error:  # for example, out of memory
            failed = self._report_error(of_exception(error, "failed to send the responses: "))
            self._send_executed([(handle, response and failed) for handle, response in settled])

    def _send_executed(self, settled: List[Tuple[RemoteRequest, Optional[InferenceResponse]]]) -> None:
        entries = []
        for handle, response in settled:
            if response is not None:
                entries.append(entry(handle.number, response, True))
            elif handle.rescheduled:
                entries.append(OutgoingRecord(handle.number, Status.RESCHEDULED))
        self._link.send_records(MessageKind.EXECUTED, entries)

    # Execution on an event loop

    async def _run_async(self) -> None:
        loop = asyncio.get_running_loop()
        stop = loop.create_future()
        tasks = set()

        def begin(frame: Frame) -> None:
            if frame[0] == MessageKind.EXECUTE:
                task = loop.create_task(self._execute_async(frame))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            elif not stop.done():
                self._model.stopping = True
                stop.set_result(None)

        self._server.work = lambda frame: loop.call_soon_threadsafe(begin, frame)
        self._link.join(loop)
        while self._work:
            begin(self._work.popleft())
        while not stop.done():
            with contextlib.suppress(asyncio.CancelledError):  # a model may cancel all tasks of its event loop
                await asyncio.shield(stop)

    async def _execute_async(self, frame: Frame) -> None:
        handles: List[RemoteRequest] = []
        requests = self._requests(frame, handles)
        del frame
        batch.set(tuple([handle.number for handle in handles]))
        if self._decoupled:
            # The next batch may begin while this one waits.
            self._finish([], [], None)
        responses: List[Optional[InferenceResponse]] = []
        failure = None
        try:
            responses = await self._model.execute_async(requests)
        except ModelError as error:
            failure = self._report_error(error)
        requests.clear()
        if not self._decoupled:
            self._finish(handles, responses, failure)
        elif failure is not None:
            for handle in handles:
                if not handle.ended:
                    handle.send(failure, True)
