"""Client of a running server by `modserve.client`, with advice for failures."""

import json
import os
import socket
import ssl
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.client import BadStatusLine
from typing import Any

from google.protobuf import json_format

from modserve.client import remote
from modserve.client.address import PORTS
from modserve.client.errors import ClientError, ClientTimeoutError
from modserve.client.http_messages import model_path
from modserve.client.http_sync import HttpTransport
from modserve.client.input_values import ClientCall, ModelMetadata, Result, metadata_of
from modserve.client.transport import (
    CONFIG,
    INDEX,
    METADATA,
    SERVER,
    ControlCall,
    Operation,
    Parameters,
    Transport,
)
from modserve.core.errors import Code, invalid
from modserve.core.secret_names import KEY_VARIABLE
from modserve.pb import inference as pb

from .destination import Destination, address
from .errors import RefusedError, UnreachableError
from .syntax import URL_VARIABLE

_LONGEST_ERROR = 2000
_START = f"'modserve serve --model-repository DIR' starts a server; --url or {URL_VARIABLE} names another one"


def connect(place: str | Destination) -> "RemoteServer":
    """Make a client of a destination or an address (`destination.address`), without a call yet. Raises INVALID_ARG."""
    to = Destination(address(place)) if isinstance(place, str) else place
    if to.address.over_grpc:
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # or the library writes lines of its own
        if to.address.secure and to.access.insecure:
            raise invalid("gRPC always checks certificates; '--ca-file' names a PEM file with the authority to trust")
    with _advice(to):
        return RemoteServer(to, remote.transport(to.address, to.access))


class RemoteServer:
    """The calls. All of them block.

    They raise UnreachableError where no server of the protocol answers, and RefusedError with the text of its error.
    """

    def __init__(self, destination: Destination, transport: Transport) -> None:
        self.url = str(destination.address)
        self._destination = destination
        self._transport = transport

    def within(self, seconds: float) -> "RemoteServer":
        """Return this server with calls limited to `seconds`. It is closed with this one."""
        limit = min(seconds, self._destination.seconds)
        return RemoteServer(replace(self._destination, seconds=limit), self._transport)

    def call(
        self, operation: Operation, model: str = "", version: int | None = None, parameters: Parameters | None = None
    ) -> Any:
        """Make a call other than an inference, and return its response in JSON's values, as over HTTP."""
        with _advice(self._destination):
            return self._transport.call(ControlCall(operation, model, version, parameters, self._destination.seconds))

    def metadata(self, model: str, version: int | None = None) -> ModelMetadata:
        with _advice(self._destination):
            return metadata_of(self.call(METADATA, model, version))

    def config(self, model: str, version: int | None = None) -> pb.ModelConfig:
        document = self.call(CONFIG, model, version)
        try:
            return json_format.ParseDict(document, pb.ModelConfig(), ignore_unknown_fields=True)
        except json_format.ParseError as error:
            raise UnreachableError(f"{self.url} does not speak the protocol: {error}") from error

    def extensions(self) -> set[str]:
        """Return the protocol extensions that the server lists."""
        document = self.call(SERVER)
        if not isinstance(document, dict):
            raise UnreachableError(f"{self.url} does not speak the protocol: its metadata is not an object")
        return set(document.get("extensions", ()))

    def ready_models(self) -> set[str]:
        """Return the names of the READY models."""
        return {row["name"] for row in self.call(INDEX) if row.get("state") == "READY"}

    def infer(self, call: ClientCall) -> Result:
        with _advice(self._destination):
            return self._transport.infer(replace(call, timeout=self._destination.seconds))

    def stream(self, call: ClientCall) -> Iterator[Result]:
        """Yield the responses of a decoupled model as they arrive."""
        with _advice(self._destination):
            yield from self._transport.stream(replace(call, timeout=self._destination.seconds))

    def page(self, path: str) -> str:
        """Return the page at a path of an HTTP port, such as metrics."""
        with _advice(self._destination):
            return self._http().page(path, self._destination.seconds).decode(errors="replace")

    def roll_back(self, model: str, version: str, reason: str | None) -> Any:
        """Stop routing requests without a version to this one, or with None resume it; return the routing after it."""
        body = json.dumps({"rolled_back": {version: reason}}).encode()
        return json.loads(b"".join(self.lines(f"{model_path(model, None)}/routing", body)) or b"{}")

    def lines(self, path: str, body: bytes) -> Generator[bytes]:
        """Yield the lines of the response to a JSON body as they arrive. Closing the iterator ends the call."""
        with _advice(self._destination):
            yield from self._http().lines(path, body, self._destination.seconds)

    def _http(self) -> HttpTransport:
        if not isinstance(self._transport, HttpTransport):
            raise invalid(f"{self.url} is not the address of an HTTP port")
        return self._transport

    def close(self) -> None:
        self._transport.close()


@contextmanager
def _advice(destination: Destination) -> Iterator[None]:
    """Convert the client's failures in the block to errors of commands, with advice."""
    try:
        yield
    except ClientError as error:
        raise failure(error, destination) from error


def failure(error: ClientError, destination: Destination) -> UnreachableError | RefusedError:
    text = error.message[:_LONGEST_ERROR]
    if error.status == 200:
        return UnreachableError(f"{destination.address} does not speak the protocol: {text}", _START)
    if error.status is None and isinstance(error, ClientTimeoutError):
        advice = (
            f"--timeout allows more than {destination.seconds:g} s; 'modserve status' shows the state of the server"
        )
        return UnreachableError(f"cannot reach a server at {destination.address}: {text}", advice)
    if error.status is None and error.code is Code.UNAVAILABLE:
        return UnreachableError(text, _advice_on_connecting(error, destination))
    return RefusedError(text, advice_on(text))


def _advice_on_connecting(error: ClientError, destination: Destination) -> str:
    cause, place = error.__cause__, destination.address
    if isinstance(cause, ssl.SSLCertVerificationError):
        return "--ca-file names a PEM file with its authority; --insecure trusts any certificate"
    if isinstance(cause, ssl.SSLError):
        return "does the port use TLS? Use --url http://… if not; --cert and --key name a client certificate"
    if isinstance(cause, BadStatusLine) and not isinstance(cause, ConnectionError):
        return f"--url needs the HTTP port, 8000 by default; {PORTS['grpc']} is usually the gRPC port"
    if isinstance(cause, socket.gaierror):
        return f"unknown host '{place.host}'; --url or {URL_VARIABLE} names another one"
    if place.over_grpc:
        if "CERTIFICATE_VERIFY_FAILED" in error.message:
            return "--ca-file names a PEM file with its authority"
        return f"--url grpc://HOST:PORT names the gRPC port; {_START}"
    if isinstance(cause, ConnectionResetError) and not place.secure:
        return f"does the port use TLS? Then use --url https://{place.authority}"
    return _START


def advice_on(text: str) -> str:
    """Return the option or command that helps, by the text of the server's error; empty if unknown."""
    return next((line for part, line in _ADVICE if part in text), "")


_ADVICE = (
    (" for TLS: ", "--ca-file, --cert and --key name PEM files"),
    ("this call needs a key", f"{KEY_VARIABLE} in the environment is sent as the key"),
    ("this call needs the scope", "'modserve keys list' shows what each key may do"),
    ("is restricted, expecting header", "--header 'NAME: VALUE' sends that header"),
    ("explicit model load / unload is not allowed", "start the server with --model-control-mode explicit"),
    ("has no available versions", "'modserve models' lists the models and the reasons why they are not ready"),
    ("nknown model", "'modserve models' lists the models"),
    ("failed to load", "'modserve models' has the reason; 'modserve check DIR' explains it with line and column"),
    ("missing required input", "--sample generates data for the other inputs"),
    ("decoupled transaction policy", "use --stream for any number of responses"),
    (
        "Not Found",
        "beside an --admin-address, --url has to name that one for loads, drains, settings and lists of models",
    ),
)
"""Parts of texts, and what helps."""
