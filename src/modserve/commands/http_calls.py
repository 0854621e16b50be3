"""Calls over HTTP to a server that runs, by the standard library. All of them block."""

import http.client
import json
import socket
import ssl
import urllib.parse
from collections.abc import Container, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from .access import GRPC_PORT, URL_VARIABLE, Access, RefusedError, UnreachableError

_LONGEST_ERROR = 2000
_NOTHING: Mapping[str, str] = MappingProxyType({})

START = f"'modserve serve --model-repository DIR' starts a server; --url or {URL_VARIABLE} names another one"


class Response(NamedTuple):
    """`headers` have names in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    def json(self) -> Any:
        """None if the content is no JSON."""
        try:
            return json.loads(self.content)
        except ValueError:
            return None


class HttpCalls:
    """One connection, which is opened again when the server has closed it.

    All methods raise UnreachableError where nobody answers, and RefusedError with the text of the server's error.
    """

    def __init__(self, access: Access, connection: http.client.HTTPConnection | None = None) -> None:
        self.access = access
        self.url = access.address.url
        host, port = access.address.host, access.address.port
        self._connection = connection or (
            http.client.HTTPSConnection(host, port, timeout=access.seconds, context=access.context())
            if access.address.secure
            else http.client.HTTPConnection(host, port, timeout=access.seconds)
        )
        self._used = False
        """Whether a call has gone over the connection, so that the server may have closed it."""

    def json(self, method: str, path: str, body: bytes | None = None) -> Any:
        """The JSON that a call responds with; None for an empty response."""
        content = self.call(method, path, body).content
        if not content.strip():
            return None
        try:
            return json.loads(content)
        except ValueError as error:
            raise UnreachableError(f"{self.url} speaks another protocol: its response is no JSON", START) from error

    def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] = _NOTHING,
        refusals: Container[int] = (),
    ) -> Response:
        """A call and the whole of its response, which may have a status of `refusals`."""
        response = self.begin(method, path, body, headers, refusals)
        try:
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        return Response(response.status, {name.lower(): value for name, value in response.headers.items()}, content)

    def lines(self, path: str, body: bytes, headers: Mapping[str, str]) -> Iterator[bytes]:
        """Post a body, and take the lines of the response as they come, without those that are empty."""
        response = self.begin("POST", path, body, headers)
        try:
            while line := response.readline():
                if line.strip():
                    yield line
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error

    def begin(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str] = _NOTHING,
        refusals: Container[int] = (),
    ) -> http.client.HTTPResponse:
        """Send a call and read the head of its response. The body has to be read before the next call."""
        again = self._used and method == "GET"
        try:
            response = self._send(method, path, body, headers)
        except (http.client.RemoteDisconnected, ConnectionError) as error:
            if not again:
                raise self._unreachable(error) from error
            response = self._again(method, path, body, headers)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        self._used = True
        if response.status != 200 and response.status not in refusals:
            try:
                content = response.read()
            except (OSError, http.client.HTTPException) as error:
                raise self._unreachable(error) from error
            raise self._refused(response.status, content)
        return response

    def _again(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        self._connection.close()
        try:
            return self._send(method, path, body, headers)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error

    def _send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        self._connection.request(method, self.access.address.path + path, body, {**self.access.headers, **headers})
        return self._connection.getresponse()

    def close(self) -> None:
        self._connection.close()

    def _unreachable(self, error: Exception) -> UnreachableError:
        self._connection.close()
        self._used = False
        message = f"cannot reach a server at {self.url}: {why(error)}"
        return UnreachableError(message, advice(error, self.access))

    def _refused(self, status: int, content: bytes) -> RefusedError:
        try:
            text = str(json.loads(content)["error"])
        except (ValueError, KeyError, TypeError):
            text = content.decode(errors="replace").strip()
        text = text[:_LONGEST_ERROR] or f"status {status}"
        return RefusedError(text, status, advice_on(text))


def quoted(name: str) -> str:
    """A name as a part of a path."""
    return urllib.parse.quote(name, safe="")


def why(error: Exception) -> str:
    """The reason in words, without numbers of the system."""
    if isinstance(error, TimeoutError):
        return "no response in time"
    if isinstance(error, http.client.RemoteDisconnected):
        return "it closed the connection without a response"
    if isinstance(error, http.client.BadStatusLine):
        return "its response is not HTTP"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS connection: {getattr(error, 'reason', None) or error}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def advice(error: Exception, access: Access) -> str:
    """The option or command that helps, after a call that came to nothing."""
    place = access.address
    if isinstance(error, ssl.SSLCertVerificationError):
        return "--ca-file names a PEM file with its authority; --insecure trusts any certificate"
    if isinstance(error, ssl.SSLError):
        return "does that port speak TLS? --url http://… is for those that do not; --cert and --key show a certificate"
    if isinstance(error, TimeoutError):
        return f"--timeout allows more than {access.seconds:g} s; 'modserve status' says whether the server is well"
    if isinstance(error, http.client.BadStatusLine) and not isinstance(error, ConnectionError):
        return f"--url names the HTTP port, which is 8000 by default; {GRPC_PORT} is usually that of gRPC"
    if isinstance(error, socket.gaierror):
        return f"there is no host '{place.host}'; --url or {URL_VARIABLE} names another one"
    if isinstance(error, ConnectionResetError) and not place.secure:
        return f"does that port speak TLS? --url https://{place.host}:{place.port} is for those that do"
    return START


def advice_on(text: str) -> str:
    """The option or command that helps, by the text of the server's error; empty if none is known."""
    return next((line for part, line in _ADVICE if part in text), "")


_ADVICE = (
    ("is restricted, expecting header", "--header 'NAME: VALUE' sends that header"),
    ("explicit model load / unload is not allowed", "start the server with --model-control-mode explicit"),
    ("has no available versions", "'modserve models' lists the models and why they are not ready"),
    ("nknown model", "'modserve models' lists the models that are there"),
    ("failed to load", "'modserve models' has the reason; 'modserve check DIR' explains it with line and column"),
    ("missing required input", "--sample makes up data for the inputs that are not named"),
    ("decoupled transaction policy", "--stream takes any number of responses"),
)
"""Parts of texts, and what helps."""
