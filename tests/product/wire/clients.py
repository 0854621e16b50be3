"""Everybody who talks to the server: each request on a thread, which settles its ticket when it has the outcome."""

import json
import queue
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from typing import Any

import grpc
import tritonclient.grpc
from server_process import ServerProcess
from tritonclient.grpc import service_pb2, service_pb2_grpc

import modserve
from product.wire import models, questions
from product.wire.ledger import CUT, GONE, Ledger, Outcome, Ticket, error
from product.wire.questions import HOST, SECONDS, Question, Responses
from product.wire.raw_calls import raw_call
from product.wire.settings import Setting

KEPT, PLATFORM, FRAMES, HTTP, GRPC, LIBRARY_HTTP, LIBRARY_GRPC, SHARED, GENERATE, LIBRARY_SOCKET = WAYS = (
    "kept connection",
    "platform's path",
    "frames of gRPC",
    "tritonclient.http",
    "tritonclient.grpc",
    "library, http",
    "library, grpc",
    "shared stream",
    "generate",
    "library, admin socket",
)
EVENTS, STREAM, LIBRARY_STREAM = STREAM_WAYS = ("generate_stream", "tritonclient's stream", "library's stream")

_THREADS = 64
Answer = tuple[Outcome, str]


class SharedStream:
    """A ModelStreamInfer on which many threads ask, and each gets what has its number."""

    def __init__(self, stub: Any) -> None:
        self._requests: queue.SimpleQueue[service_pb2.ModelInferRequest | None] = queue.SimpleQueue()
        self._waiting: dict[str, queue.SimpleQueue[Any]] = {}
        self._lock = threading.Lock()
        self._ended: Outcome | None = None
        self._call = stub.ModelStreamInfer(iter(self._requests.get, None))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def ended(self) -> bool:
        return self._ended is not None

    def ask(self, question: Question) -> Answer:
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with self._lock:
            if self._ended is not None:
                return self._ended, ""
            self._waiting[str(question.number)] = answers
        self._requests.put(question.message)
        answer = answers.get()
        if isinstance(answer, Outcome):
            return answer, ""
        if answer.error_message:
            return error("ERROR", answer.error_message), ""
        return questions.of_message(question, answer.infer_response)

    def _read(self) -> None:
        try:
            for response in self._call:
                with self._lock:
                    answers = self._waiting.pop(response.infer_response.id, None)
                if answers is not None:
                    answers.put(response)
            ended = error(CUT, "the stream has ended")
        except grpc.RpcError as failure:
            ended = questions.of_rpc(failure)
        with self._lock:
            self._ended, waiting = ended, list(self._waiting.values())
        for answers in waiting:
            answers.put(ended)

    def close(self) -> None:
        self._requests.put(None)
        self._reader.join(SECONDS)


class Clients:
    """Those of one server; `close` when all tickets are settled."""

    def __init__(self, server: ServerProcess, ledger: Ledger, admin: str, setting: Setting) -> None:
        """`admin`: the path of the server's socket for operators, which serves everything that the ports do."""
        self.setting = setting
        self.http_port, self.grpc_port = server.http_port, server.grpc_port
        self._ledger = ledger
        self._threads = ThreadPoolExecutor(_THREADS)
        self._grpc = tritonclient.grpc.InferenceServerClient(f"{HOST}:{self.grpc_port}")
        self._channel = grpc.insecure_channel(f"{HOST}:{self.grpc_port}")
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._library = {
            LIBRARY_HTTP: modserve.connect(f"http://{HOST}:{self.http_port}", timeout=SECONDS),
            LIBRARY_GRPC: modserve.connect(f"grpc://{HOST}:{self.grpc_port}", timeout=SECONDS),
            LIBRARY_SOCKET: modserve.connect(f"unix:{admin}", timeout=SECONDS),
        }
        self._kept: list[HTTPConnection] = []
        self._shared: SharedStream | None = None
        self._lock = threading.Lock()
        self.on = threading.Event()
        """Set: those who read slowly go on."""
        self.reading = threading.Semaphore(0)
        """Released by each slow reader that has the head of its response."""

    def close(self) -> None:
        self.on.set()
        if self._shared is not None:
            self._shared.close()
        self._threads.shutdown()
        for client in self._library.values():
            client.close()
        self._grpc.close()
        self._channel.close()
        for connection in self._kept:
            connection.close()

    def run(self, ticket: Ticket, ask: Callable[[], Answer]) -> None:
        """Settle the ticket by what `ask` returns."""

        def settle() -> None:
            try:
                outcome, wrong = ask()
            except (OSError, HTTPException) as failure:
                outcome, wrong = error(CUT, repr(failure)), ""
            except Exception as failure:
                outcome, wrong = error(CUT, repr(failure)), f"the client raised {failure!r}"
            self._ledger.settle(ticket, outcome, wrong)

        self._threads.submit(settle)

    # Requests with one response

    def send_as(self, ticket: Ticket, question: Question, deadline_s: float = SECONDS) -> Ticket:
        ways: dict[str, Callable[[], Answer]] = {
            KEPT: lambda: self._by_kept(question),
            PLATFORM: lambda: self._by_kept(question, by_platform=True),
            FRAMES: lambda: questions.by_frames(self.grpc_port, question, self.setting),
            HTTP: lambda: questions.by_triton_http(self.http_port, question),
            GRPC: lambda: questions.by_triton_grpc(self._grpc, question, deadline_s),
            LIBRARY_HTTP: lambda: questions.by_library(self._library[LIBRARY_HTTP], question),
            LIBRARY_SOCKET: lambda: questions.by_library(self._library[LIBRARY_SOCKET], question),
            LIBRARY_GRPC: lambda: questions.by_library(self._library[LIBRARY_GRPC], question),
            SHARED: lambda: self._stream().ask(question),
            GENERATE: lambda: questions.by_generate(self.http_port, question, self.setting),
        }
        self.run(ticket, ways[ticket.way])
        return ticket

    def _by_kept(self, question: Question, *, by_platform: bool = False) -> Answer:
        with self._lock:
            connection = self._kept.pop() if self._kept else HTTPConnection(HOST, self.http_port, timeout=SECONDS)
        try:
            answer = questions.by_kept_connection(connection, question, self.setting, by_platform=by_platform)
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._kept.append(connection)
        return answer

    def _stream(self) -> SharedStream:
        with self._lock:
            if self._shared is None or self._shared.ended:
                self._shared = SharedStream(self.stub)
            return self._shared

    def send_cancellable(self, question: Question) -> tuple[Ticket, Callable[[], object]]:
        """Over gRPC; with what cancels it."""
        ticket = self._ledger.open(question.model, "gRPC, cancelled", ("^CANCELLED",), question.number)
        call = self.stub.ModelInfer.future(question.message, timeout=SECONDS)

        def ask() -> Answer:
            try:
                return questions.of_message(question, call.result())
            except grpc.FutureCancelledError:
                return error("CANCELLED", ""), ""
            except grpc.RpcError as failure:
                return questions.of_rpc(failure), ""

        self.run(ticket, ask)
        return ticket, call.cancel

    def send_frames(self, question: Question, timeout_ms: int) -> Ticket:
        """Over gRPC, with a deadline that the server knows of and this client does not keep."""
        ticket = self._ledger.open(question.model, "frames, deadline", ("^DEADLINE_EXCEEDED",), question.number)
        self.run(ticket, lambda: questions.by_frames(self.grpc_port, question, self.setting, timeout_ms))
        return ticket

    def reset(self, question: Question) -> Ticket:
        """Over gRPC, and taken back at once."""
        ticket = self._ledger.open(question.model, "frames, reset", number=question.number)

        def ask() -> Answer:
            request = question.message.SerializeToString()
            response = raw_call((HOST, self.grpc_port), "ModelInfer", request, SECONDS, gives_up=True)
            return Outcome(GONE), self.setting.wrong_trailers(response.reports, response.status)

        self.run(ticket, ask)
        return ticket

    # Requests with many responses

    def send_stream(self, question: Question, way: str) -> Ticket:
        ticket = self._ledger.open(question.model, way, number=question.number)
        ways: dict[str, Callable[[], Answer]] = {
            EVENTS: lambda: self._by_events(question, slowly=False),
            STREAM: lambda: self._by_triton_stream(question),
            LIBRARY_STREAM: lambda: self._by_library_stream(question),
        }
        self.run(ticket, ways[way])
        return ticket

    def send_slow_reader(self, question: Question) -> Ticket:
        """Reads the head of its response, and the rest when `on` is set."""
        ticket = self._ledger.open(question.model, "slow reader", ("client .* waited for it",), question.number)
        self.run(ticket, lambda: self._by_events(question, slowly=True))
        return ticket

    def _by_events(self, question: Question, *, slowly: bool) -> Answer:
        responses = Responses(question)
        connection = HTTPConnection(HOST, self.http_port, timeout=SECONDS)
        try:
            connection.connect()
            if slowly:
                connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            body = json.dumps({"INPUT0": list(question.values), "id": str(question.number)}).encode()
            path, headers = self.setting.place(f"{question.path}/generate_stream", use=question.number % 3 > 0)
            number = question.number
            response, complaint = questions.posted(connection, self.setting, number, path, body, headers)
            responses.wrong = complaint
            if response.status != 200:
                return questions.of_http(question, response.status, response.read())[0], complaint
            if slowly:
                self.reading.release()
                self.on.wait()
            for event in questions.events(response):
                if "error" in event:
                    return error("ERROR", event["error"]), ""
                responses.take(event["OUTPUT0"])
        finally:
            connection.close()
        return responses.end()

    def _by_triton_stream(self, question: Question) -> Answer:
        responses = Responses(question)
        got: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        with tritonclient.grpc.InferenceServerClient(f"{HOST}:{self.grpc_port}") as client:
            client.start_stream(lambda result, error: got.put((result, error)))
            one = tritonclient.grpc.InferInput("INPUT0", question.shape, "INT32")
            one.set_data_from_numpy(question.array)
            client.async_stream_infer(
                question.model, [one], request_id=str(question.number), enable_empty_final_response=True
            )
            while True:
                result, failure = got.get()
                if failure is not None:
                    return questions.of_client(failure), ""
                message = result.get_response()
                if message.outputs:
                    responses.take(questions.values_of(message))
                if message.parameters["triton_final_response"].bool_param:
                    return responses.end()

    def _by_library_stream(self, question: Question) -> Answer:
        responses = Responses(question)
        client = self._library[LIBRARY_HTTP if question.number % 2 else LIBRARY_GRPC]
        try:
            for result in client.stream(question.model, {"INPUT0": question.array}):
                responses.take(result["OUTPUT0"].tolist())
        except modserve.ClientError as failure:
            return questions.of_library(failure), ""
        return responses.end()

    # Sequences

    def send_sequence(self, values: Sequence[int], over_grpc: bool) -> Ticket:
        """Each response is the sum so far."""
        ticket = self._ledger.open(models.SUMS, f"sequence, {'gRPC' if over_grpc else 'HTTP'}")
        self.run(ticket, lambda: self._sequence(ticket.number, values, over_grpc))
        return ticket

    def _sequence(self, number: int, values: Sequence[int], over_grpc: bool) -> Answer:
        total, wrong = 0, ""
        for place, value in enumerate(values):
            total += value
            where = {
                "sequence_id": number,
                "sequence_start": place == 0,
                "sequence_end": place == len(values) - 1,
            }
            outcome, result, complaint = self._step(number, value, where, over_grpc)
            wrong = wrong or complaint
            if outcome is not None:
                return outcome, wrong
            if result != total and not wrong:
                wrong = f"step {place}: expected the sum {total}, got {result}"
        return Outcome("answered"), wrong

    def _step(self, number: int, value: int, where: dict[str, Any], over_grpc: bool) -> tuple[Outcome | None, int, str]:
        if over_grpc:
            message = service_pb2.ModelInferRequest(model_name=models.SUMS, id=str(number))
            message.inputs.add(name="INPUT", datatype="INT32", shape=[1, 1])
            message.raw_input_contents.append(struct.pack("<i", value))
            message.parameters["sequence_id"].int64_param = number
            message.parameters["sequence_start"].bool_param = where["sequence_start"]
            message.parameters["sequence_end"].bool_param = where["sequence_end"]
            try:
                return None, questions.values_of(self.stub.ModelInfer(message, timeout=SECONDS))[0], ""
            except grpc.RpcError as failure:
                return questions.of_rpc(failure), 0, ""
        one = {"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [value]}
        body = json.dumps({"id": str(number), "parameters": where, "inputs": [one]}).encode()
        connection = HTTPConnection(HOST, self.http_port, timeout=SECONDS)
        path, headers = self.setting.place(f"/v2/models/{models.SUMS}/infer", use=number % 2 > 0)
        try:
            response, complaint = questions.posted(connection, self.setting, number, path, body, headers)
            document = json.loads(response.read())
        finally:
            connection.close()
        if response.status != 200:
            return questions.error_of_http(response.status, document), 0, complaint
        return None, int(document["outputs"][0]["data"][0]), complaint

    def upload(self, question: Question, pause: Callable[[], object], over_grpc: bool) -> Ticket:
        """Send all of a request but its last byte, and that after `pause`."""
        ticket = self._ledger.open(question.model, f"an upload, gRPC: {over_grpc}", number=question.number)

        def by_http() -> Answer:
            with closing(HTTPConnection(HOST, self.http_port, timeout=SECONDS)) as connection:
                target, headers = self.setting.place(f"{question.path}/infer", use=False)
                connection.putrequest("POST", target)
                for name, value in {**headers, "Content-Length": str(len(question.json))}.items():
                    connection.putheader(name, value)
                connection.endheaders(question.json[:-1])
                pause()
                connection.send(question.json[-1:])
                response = connection.getresponse()
                return questions.of_http(question, response.status, response.read())

        def by_frames() -> Answer:
            return questions.by_frames(self.grpc_port, question, self.setting, pause=pause)

        self.run(ticket, by_frames if over_grpc else by_http)
        return ticket

    # Clients that leave

    def leave(self, question: Question, share: float, abruptly: bool, path: str = "infer") -> Ticket:
        """Send this share of a request, and close the connection at once; abruptly: with a reset."""
        ticket = self._ledger.open(question.model, "left", number=question.number)
        body = question.json if path == "infer" else json.dumps({"INPUT0": list(question.values)}).encode()
        target, headers = self.setting.place(f"{question.path}/{path}", use=question.number % 2 > 0)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"POST {target} HTTP/1.1\r\nHost: x\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode()
        whole = head + body
        with socket.create_connection((HOST, self.http_port), SECONDS) as connection:
            connection.sendall(whole[: max(1, int(len(whole) * share))])
            if abruptly:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._ledger.settle(ticket, Outcome(GONE))
        return ticket
