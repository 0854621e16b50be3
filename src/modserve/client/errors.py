"""The exceptions of clients."""

import http.client
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from modserve.core.errors import Code, ModserveError
from modserve.protocol import failures

CODES = {404: Code.NOT_FOUND, 500: Code.INTERNAL, 501: Code.UNSUPPORTED, 503: Code.UNAVAILABLE, 429: Code.UNAVAILABLE}
"""Codes by HTTP status; other statuses below 500 are INVALID_ARG."""


class ClientError(ModserveError):
    """The failure of a call.

    `message` is the server's text and `code` the kind of failure. `status` is the HTTP status: the received one, or,
    over gRPC and in process, the one that HTTP would have had. It is None if no server responded.
    """

    def __init__(self, code: Code, message: str, status: int | None = None) -> None:
        super().__init__(code, message)
        self.status = status

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.message, self.status)


class ClientTimeoutError(ClientError, TimeoutError):
    """The call took longer than its `timeout`. This is also a TimeoutError."""

    def __init__(self, code: Code, message: str, status: int | None = None) -> None:
        ClientError.__init__(self, code, message, status)

    __str__ = Exception.__str__  # an OSError would look for a number of the system's


_LATE = frozenset({"Request timeout expired", "Deadline Exceeded"})
"""Messages of servers for requests that timed out."""


def make_error(code: Code, message: str, status: int) -> ClientError:
    """Return a failure that a server reports."""
    return (ClientTimeoutError if message in _LATE else ClientError)(code, message, status)


def from_status(status: int, message: str) -> ClientError:
    """Return the failure that an HTTP response with this status reports."""
    code = CODES.get(status, Code.INVALID_ARG if status < 500 else Code.UNKNOWN)
    return make_error(code, message or f"status {status}", status)


def from_server(error: ModserveError) -> ClientError:
    """Return a failure of a server in this process."""
    return make_error(error.code, error.message, failures.spelling(error).http)


def unreachable(where: str, error: BaseException) -> ClientError:
    """No server responds at `where`, or its response cannot be parsed."""
    return ClientError(Code.UNAVAILABLE, f"cannot reach a server at {where}: {_reason(error)}")


def bad_response(why: str) -> ClientError:
    """Return the error for a response that breaks the protocol. No other failure has the status 200."""
    return ClientError(Code.UNKNOWN, f"the response cannot be understood: {why}", 200)


def _reason(error: BaseException) -> str:
    """Return the reason in words, without the system's numbers."""
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


def make_timeout_error(timeout: float | None) -> ClientTimeoutError:
    return ClientTimeoutError(Code.UNAVAILABLE, f"no response within {timeout:g} s" if timeout else "no response")


@contextmanager
def client_errors(timeout: float | None = None) -> Iterator[None]:
    """Failures of a server in this process leave the block as `ClientError`; `timeout` is the call's limit."""
    try:
        yield
    except ClientError:
        raise
    except TimeoutError:
        raise make_timeout_error(timeout) from None
    except ModserveError as error:
        raise from_server(error) from None
