"""Requests as each client sends them, and what each client makes of the responses, as `ledger.Outcome`s."""

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

import modserve
from product.wire import models
from product.wire.ledger import ANSWERED, CUT, Outcome, error
from product.wire.raw_calls import raw_call
from product.wire.settings import REPORT, Setting

HOST = "127.0.0.1"
SECONDS = 300.0
"""Far more than anything takes: the test itself sees earlier that nothing goes on."""

_CODES = {
    400: "INVALID_ARGUMENT",
    404: "NOT_FOUND",
    408: "CUT",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


@dataclass(frozen=True)
class Question:
    """A request for INPUT0, whose first value is the number."""

    model: str
    number: int
    values: tuple[int, ...]
    version: str = ""
    timeout_us: int = 0
    batched: bool = True

    @property
    def shape(self) -> list[int]:
        return [1, len(self.values)] if self.batched else [len(self.values)]

    @property
    def array(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        return np.array(self.values, np.int32).reshape(self.shape)

    @property
    def path(self) -> str:
        return f"/v2/models/{self.model}" + (f"/versions/{self.version}" if self.version else "")

    @property
    def json(self) -> bytes:
        document: dict[str, Any] = {
            "id": str(self.number),
            "inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": self.shape, "data": list(self.values)}],
        }
        if self.timeout_us:
            document["parameters"] = {"timeout": self.timeout_us}
        return json.dumps(document).encode()

    @property
    def message(self) -> service_pb2.ModelInferRequest:
        message = service_pb2.ModelInferRequest(model_name=self.model, model_version=self.version, id=str(self.number))
        message.inputs.add(name="INPUT0", datatype="INT32", shape=self.shape)
        message.raw_input_contents.append(self.array.tobytes())
        message.parameters["triton_enable_empty_final_response"].bool_param = True
        if self.timeout_us:
            message.parameters["timeout"].int64_param = self.timeout_us
        return message


def echo(question: Question, id: str, values: Any, version: str) -> tuple[Outcome, str]:
    """A response that is its request again."""
    wrong = ""
    if id != str(question.number):
        wrong = f"the response has the id '{id}'"
    elif list(values) != list(question.values):
        wrong = f"expected {question.values}, the response has {list(values)}"
    elif question.version and version != question.version:
        wrong = f"version {question.version} was asked for, version {version} responded"
    return Outcome(ANSWERED, version=version), wrong


def of_http(question: Question, status: int, body: bytes) -> tuple[Outcome, str]:
    document = json.loads(body)
    if status != 200:
        return error_of_http(status, document), ""
    output = document["outputs"][0]
    return echo(question, document.get("id", ""), output["data"], document["model_version"])


def error_of_http(status: int, document: Any) -> Outcome:
    return error(_CODES.get(status, f"HTTP {status}"), str(document.get("error")))


def of_message(question: Question, response: Any) -> tuple[Outcome, str]:
    values = np.frombuffer(response.raw_output_contents[0], np.int32)
    return echo(question, response.id, values.tolist(), response.model_version)


def of_rpc(failure: grpc.RpcError) -> Outcome:
    return error(failure.code().name, failure.details() or "")


def of_client(failure: InferenceServerException) -> Outcome:
    """The errors of a stream are texts without a code."""
    status = str(failure.status() or "ERROR").removeprefix("StatusCode.")
    return error(_CODES.get(int(status), status) if status.isdigit() else status, failure.message())


# Each way of sending a request that has one response


def posted(
    connection: HTTPConnection, setting: Setting, number: int, path: str, body: bytes, *more: dict[str, str]
) -> tuple[HTTPResponse, str]:
    """The response to a POST whose body nobody has read yet, and what is wrong with its load reports.

    Raises what the connection raises: it may have been closed before the request was sent.
    """
    headers = {"Content-Type": "application/json"} | setting.report_headers(number)
    for each in more:
        headers |= each
    connection.request("POST", path, body, headers)
    response = connection.getresponse()
    return response, setting.wrong_reports(number, response.headers.get_all(REPORT) or [])


def by_kept_connection(
    connection: HTTPConnection, question: Question, setting: Setting, *, by_platform: bool = False
) -> tuple[Outcome, str]:
    """Raises what the connection raises."""
    default = question.model == models.PLAIN and question.number % 3 == 0
    path, headers = setting.place(f"{question.path}/infer", use=by_platform, default=default)
    response, complaint = posted(connection, setting, question.number, path, question.json, headers)
    outcome, wrong = of_http(question, response.status, response.read())
    return outcome, complaint or wrong


def by_triton_http(port: int, question: Question) -> tuple[Outcome, str]:
    options = {"connection_timeout": SECONDS, "network_timeout": SECONDS}
    with tritonclient.http.InferenceServerClient(f"{HOST}:{port}", **options) as client:
        one = tritonclient.http.InferInput("INPUT0", question.shape, "INT32")
        one.set_data_from_numpy(question.array)
        how = {"timeout": question.timeout_us} if question.timeout_us else {}
        try:
            result = client.infer(
                question.model, [one], model_version=question.version, request_id=str(question.number), **how
            )
        except InferenceServerException as failure:
            return of_client(failure), ""
        response = result.get_response()
        return echo(question, response["id"], result.as_numpy("OUTPUT0").ravel().tolist(), response["model_version"])


def by_triton_grpc(
    client: tritonclient.grpc.InferenceServerClient, question: Question, deadline_s: float = SECONDS
) -> tuple[Outcome, str]:
    one = tritonclient.grpc.InferInput("INPUT0", question.shape, "INT32")
    one.set_data_from_numpy(question.array)
    how = {"timeout": question.timeout_us} if question.timeout_us else {}
    try:
        result = client.infer(
            question.model,
            [one],
            model_version=question.version,
            request_id=str(question.number),
            client_timeout=deadline_s,
            **how,
        )
    except InferenceServerException as failure:
        return of_client(failure), ""
    return of_message(question, result.get_response())


def by_library(client: modserve.Client, question: Question) -> tuple[Outcome, str]:
    version = int(question.version) if question.version else None
    try:
        result = client.infer(
            question.model, {"INPUT0": question.array}, version=version, request_id=str(question.number)
        )
    except modserve.ClientError as failure:
        return of_library(failure), ""
    return echo(question, result.id, result["OUTPUT0"].ravel().tolist(), str(result.version))


def of_library(failure: Any) -> Outcome:
    return error(_LIBRARY.get(failure.code.name, failure.code.name), failure.message)


_LIBRARY = {"INVALID_ARG": "INVALID_ARGUMENT", "UNSUPPORTED": "UNIMPLEMENTED"}


def by_generate(port: int, question: Question, setting: Setting) -> tuple[Outcome, str]:
    connection = HTTPConnection(HOST, port, timeout=SECONDS)
    try:
        body = json.dumps({"INPUT0": list(question.values), "id": str(question.number)}).encode()
        response, complaint = posted(connection, setting, question.number, question.path + "/generate", body)
        document = json.loads(response.read())
    except (OSError, HTTPException) as failure:
        return error(CUT, repr(failure)), ""
    finally:
        connection.close()
    if response.status != 200:
        return error_of_http(response.status, document), complaint
    outcome, wrong = echo(question, document.get("id", ""), document["OUTPUT0"], document["model_version"])
    return outcome, complaint or wrong


def by_frames(
    port: int, question: Question, setting: Setting, timeout_ms: int = 0, pause: Callable[[], object] | None = None
) -> tuple[Outcome, str]:
    """Over gRPC, with a look at the load reports. `pause` comes before the last byte of the request."""
    message = question.message.SerializeToString()
    response = raw_call((HOST, port), "ModelInfer", message, SECONDS, timeout_ms=timeout_ms, pause=pause)
    complaint = setting.wrong_trailers(response.reports, response.status)
    if response.status != "OK":
        return error(response.status or CUT, response.message), complaint
    outcome, wrong = of_message(question, response.inference)
    return outcome, complaint or wrong


# Streams


class Responses:
    """Checks the responses of `many` to one question as they come: numbered, whole, and nobody else's."""

    def __init__(self, question: Question) -> None:
        self._number, self._count, _, width = question.values
        self._length = width + 2
        self._next = 0
        self.wrong = ""

    def take(self, values: Any) -> None:
        head = list(values[:2])
        if head != [self._number, self._next] and not self.wrong:
            self.wrong = f"expected response {self._next} of {self._number}, got {head}"
        elif len(values) != self._length and not self.wrong:
            self.wrong = f"response {self._next} has {len(values)} values, expected {self._length}"
        self._next += 1

    def end(self) -> tuple[Outcome, str]:
        if self._next != self._count and not self.wrong:
            self.wrong = f"{self._next} responses, expected {self._count}"
        return Outcome(ANSWERED), self.wrong


def events(response: Any) -> Iterator[dict[str, Any]]:
    """Server-sent events, as they come."""
    for line in response:
        if line.startswith(b"data:"):
            yield json.loads(line[5:])


def values_of(message: Any) -> list[int]:
    raw = message.raw_output_contents[0]
    return list(struct.unpack(f"<{len(raw) // 4}i", raw))
