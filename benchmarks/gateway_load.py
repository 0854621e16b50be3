"""Requests of five kinds through a gateway, each counted by what became of it: right, refused, failed, or wrong."""

import http.client
import itertools
import json
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

PATIENCE_S = 20.0
"""A client gives a request up after it, if not told otherwise."""
PAUSE_S = 0.004
"""Between two requests of a client, so that clients leave the processors to what is tested."""
_STREAM = 4
"""Responses of a stream."""
_BETWEEN_MS = 15
_OPTIONS = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
"""What a client repeats by itself would hide what a gateway loses."""


class Refused(Exception):
    """The request was not taken, and the response says so in the protocol's form: send it again."""


class Failed(Exception):
    """Anything else without a right answer."""


class Wrong(Exception):
    """An answer that is not that of the request."""


@dataclass
class Tally:
    """What became of the requests; `longest_s` is the longest time that one took."""

    sent: int = 0
    right: int = 0
    refused: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    versions: dict[str, int] = field(default_factory=dict)

    @property
    def adds_up(self) -> bool:
        return self.sent == self.right + len(self.refused) + len(self.failed) + len(self.wrong)

    @property
    def longest_s(self) -> float:
        return max(self.latencies_s, default=0.0)

    def add(self, other: "Tally") -> None:
        self.sent += other.sent
        self.right += other.right
        self.refused += other.refused
        self.failed += other.failed
        self.wrong += other.wrong
        self.latencies_s += other.latencies_s
        for version, count in other.versions.items():
            self.versions[version] = self.versions.get(version, 0) + count

    def quantile_s(self, share: float) -> float:
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


Call = Callable[[int], str]
"""Sends a request about a number, and gives the version that answered it, or raises one of the above."""


class HttpCaller:
    """One connection, as a client of HTTP keeps it."""

    def __init__(self, port: int, model: str, version: str = "", patience_s: float = PATIENCE_S) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience_s)
        self._path = f"/v2/models/{model}" + (f"/versions/{version}" if version else "")

    def close(self) -> None:
        self._connection.close()

    def _post(self, call: str, body: bytes, headers: dict[str, str]) -> tuple[http.client.HTTPResponse, bytes]:
        try:
            self._connection.request("POST", f"{self._path}/{call}", body, headers)
            response = self._connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise Failed(f"{type(error).__name__} {error}") from None
        if response.status != 200:
            text = f"{response.status} {content[:200].decode(errors='replace')}"
            try:
                message = json.loads(content)["error"]
            except (ValueError, TypeError, KeyError):
                raise Failed(f"no error of the protocol: {text}") from None
            refused = response.status in (404, 429, 503) and isinstance(message, str)
            raise (Refused if refused else Failed)(text)
        return response, content

    def json(self, number: int) -> str:
        tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 4], "data": [number, 1, 2, 3]}
        _, content = self._post("infer", json.dumps({"id": str(number), "inputs": [tensor]}).encode(), {})
        document = json.loads(content)
        version = str(document["model_version"])
        _compare(number, document["id"], version, document["outputs"][0]["data"])
        return version

    def binary(self, number: int) -> str:
        raw = struct.pack("<4i", number, 1, 2, 3)
        tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 4], "parameters": {"binary_data_size": len(raw)}}
        document = {"id": str(number), "inputs": [tensor], "parameters": {"binary_data_output": True}}
        head = json.dumps(document).encode()
        response, content = self._post("infer", head + raw, {"Inference-Header-Content-Length": str(len(head))})
        length = int(response.headers["Inference-Header-Content-Length"])
        fields = json.loads(content[:length])
        version = str(fields["model_version"])
        _compare(number, fields["id"], version, list(struct.unpack("<4i", content[length:])))
        return version

    def events(self, number: int) -> str:
        """A stream of server-sent events."""
        values = list(range(number, number + _STREAM))
        body = {"IN": values, "DELAY": [_BETWEEN_MS] * _STREAM, "WAIT": [0]}
        _, content = self._post("generate_stream", json.dumps(body).encode(), {})
        texts = [line.removeprefix("data: ") for line in content.decode().splitlines() if line.startswith("data: ")]
        events = [json.loads(text) for text in texts]
        if errors := [event["error"] for event in events if "error" in event]:
            raise Failed(f"the stream ends with {errors[0]}")
        if [event["OUT"] for event in events] != values:
            raise Wrong(f"a stream of {number} that ends as if it were complete: {content!r}")
        return str(events[0]["model_version"])


class GrpcCaller:
    """One channel."""

    def __init__(self, port: int, model: str, version: str = "", patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._model, self._version = model, version

    def close(self) -> None:
        self._channel.close()

    def unary(self, number: int) -> str:
        request = self._request(str(number))
        request.inputs.add(name="INPUT0", datatype="INT32", shape=[1, 4])
        request.raw_input_contents.append(struct.pack("<4i", number, 1, 2, 3))
        try:
            response = self._stub.ModelInfer(request, timeout=self._patience_s)
        except grpc.RpcError as error:
            raise _grpc_failure(error) from None
        _compare(
            number, response.id, response.model_version, list(struct.unpack("<4i", response.raw_output_contents[0]))
        )
        return str(response.model_version)

    def stream(self, number: int) -> str:
        """A stream in both directions with one request of many responses."""
        values = list(range(number, number + _STREAM))
        request = self._request(str(number))
        for name, datatype, kind, elements in (
            ("IN", "INT32", "i", values),
            ("DELAY", "UINT32", "I", [_BETWEEN_MS] * _STREAM),
            ("WAIT", "UINT32", "I", [0]),
        ):
            request.inputs.add(name=name, datatype=datatype, shape=[len(elements)])
            request.raw_input_contents.append(struct.pack(f"<{len(elements)}{kind}", *elements))
        outputs, version = [], ""
        try:
            for message in self._stub.ModelStreamInfer(iter([request]), timeout=self._patience_s):
                if message.error_message:
                    raise Failed(f"the stream has {message.error_message}")
                response = message.infer_response
                version = response.model_version
                place = [output.name for output in response.outputs].index("OUT")
                outputs += struct.unpack("<i", response.raw_output_contents[place])
        except grpc.RpcError as error:
            raise _grpc_failure(error) from None
        if outputs != values:
            raise Wrong(f"a stream of {number} with status OK that has {outputs}")
        return version

    def _request(self, request_id: str) -> service_pb2.ModelInferRequest:
        return service_pb2.ModelInferRequest(model_name=self._model, model_version=self._version, id=request_id)


def _grpc_failure(error: grpc.RpcError) -> Exception:
    refusals = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.NOT_FOUND)
    text = f"{error.code().name} {error.details()}"
    # What grpcio itself says of a connection or a stream that ends without a status is no refusal.
    broken = any(words in text for words in ("Socket closed", "recvmsg", "Stream removed", "RST_STREAM", "http2"))
    return Refused(text) if error.code() in refusals and not broken else Failed(text)


def _compare(number: int, request_id: str, version: str, elements: list[int]) -> None:
    if request_id != str(number) or elements != [element * int(version) for element in (number, 1, 2, 3)]:
        raise Wrong(f"of {number}: id {request_id}, version {version}, {elements}")


class Load:
    """Clients that send until `stop`, each kind in threads of its own, all with numbers of their own."""

    def __init__(
        self,
        http_port: int,
        grpc_port: int,
        model: str,
        streams: bool = True,
        patience_s: float = PATIENCE_S,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._pause_s = pause_s
        self._tallies: dict[str, Tally] = {}
        self._changed = threading.Condition()
        self._ended = threading.Event()
        self._numbers = itertools.count(1)
        self._threads: list[threading.Thread] = []
        self._began: dict[int, float] = {}
        kinds: list[tuple[str, Callable[[], HttpCaller | GrpcCaller], str, int]] = [
            ("REST", lambda: HttpCaller(http_port, model, patience_s=patience_s), "json", 2),
            ("REST", lambda: HttpCaller(http_port, model, patience_s=patience_s), "binary", 2),
            ("gRPC", lambda: GrpcCaller(grpc_port, model, patience_s=patience_s), "unary", 4),
        ]
        if streams:
            kinds += [
                ("REST streams", lambda: HttpCaller(http_port, "repeat", patience_s=patience_s), "events", 2),
                ("gRPC streams", lambda: GrpcCaller(grpc_port, "repeat", patience_s=patience_s), "stream", 2),
            ]
        for name, caller, method, count in kinds:
            tally = self._tallies.setdefault(name, Tally())
            for _ in range(count):
                self._threads.append(threading.Thread(target=self._run, args=(tally, caller, method), daemon=True))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _run(self, tally: Tally, caller: Callable[[], HttpCaller | GrpcCaller], method: str) -> None:
        client = caller()
        call: Call = getattr(client, method)
        while not self._ended.wait(self._pause_s):
            with self._changed:
                number = next(self._numbers)
                tally.sent += 1
                self._began[number] = began = time.monotonic()
            outcome: Exception | str
            try:
                outcome = call(number)
            except (Refused, Failed, Wrong) as error:
                outcome = error
            with self._changed:
                del self._began[number]
                tally.latencies_s.append(time.monotonic() - began)
                _count(tally, outcome)
                self._changed.notify_all()
        client.close()

    def stop(self) -> dict[str, Tally]:
        """By kind, once all requests have ended."""
        self._ended.set()
        for thread in self._threads:
            thread.join()
        return self._tallies

    def wait_for_answers(self, count: int) -> None:
        """Until each kind has so many more right answers."""
        with self._changed:
            goals = {name: tally.right + count for name, tally in self._tallies.items()}
            if not self._changed.wait_for(
                lambda: all(tally.right >= goals[name] for name, tally in self._tallies.items()), 3 * PATIENCE_S
            ):
                raise TimeoutError(f"no {count} further answers of each kind: {self._tallies}")

    def wait_for_those_in_flight(self) -> None:
        """Until all requests that have been sent by now have ended."""
        with self._changed:
            now = time.monotonic()
            if not self._changed.wait_for(lambda: min(self._began.values(), default=now) >= now, 3 * PATIENCE_S):
                raise TimeoutError("requests without an end")


def _count(tally: Tally, outcome: Exception | str) -> None:
    if isinstance(outcome, str):
        tally.right += 1
        tally.versions[outcome] = tally.versions.get(outcome, 0) + 1
    else:
        names = {Refused: tally.refused, Failed: tally.failed, Wrong: tally.wrong}
        names[type(outcome)].append(str(outcome))
