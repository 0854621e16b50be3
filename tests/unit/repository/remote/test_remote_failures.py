"""What the failures of stores become: the same words each time, with what to do, and without secrets."""

import pytest
from obstore.exceptions import GenericError, PermissionDeniedError, PreconditionError, UnauthenticatedError
from remote_fixtures import PLACE, place_of

from modserve.repository.remote.failures import reason

URL = "Error performing GET http://host/bucket?sig=PASSWORD in 19.3ms - Server returned non-2xx status code: "


def xml(code: str, message: str = "Why\nRequestId: 17") -> str:
    return f"<Error><Code>{code}</Code><Message>{message}</Message><Key>PASSWORD</Key></Error>"


@pytest.mark.parametrize(
    ("error", "text", "transient"),
    [
        (GenericError(f"{URL}404 Not Found: {xml('NoSuchBucket')}"), "there is no bucket 'bucket' (NoSuch", False),
        (PermissionDeniedError(f"{URL}403 Forbidden: {xml('Denied')}"), "permission denied (Denied: Why)", False),
        (PermissionDeniedError(f"{URL}403 Forbidden: "), "permission denied: check AWS_ACCESS_KEY_ID", False),
        (UnauthenticatedError(f"{URL}401: "), "the store does not accept the credentials: check AWS_", False),
        (GenericError(f"{URL}301: {xml('PermanentRedirect')}"), "the bucket is in another region", False),
        (GenericError(f"{URL}503 Slow: {xml('SlowDown')}"), "the store fails with status 503 (Slow", True),
        (GenericError(f"{URL}418 Teapot"), "the store responds with status 418", False),
        (GenericError("... - HTTP error: error sending request"), "the store cannot be reached; check the", True),
        (GenericError("x\n kind: Timeout"), "the store does not respond in time", True),
        (GenericError("x\n HTTP error: builder error"), "not a valid http:// or https:// URL", False),
        (GenericError("x http://169.254.169.254/latest"), "the library found no credentials", False),
        (
            GenericError("x\n kind: Interrupted, source: reqwest::Error { kind: Body"),
            "the transfer was interrupted",
            True,
        ),
        (GenericError("x\n kind: Body, source: TimedOut"), "the store does not respond in time", True),
        (GenericError("error decoding response body"), "the transfer was interrupted (GenericError)", True),
        (PreconditionError("x"), "it changed while it was read", True),
        (FileNotFoundError(f"{URL}404 Not Found: {xml('NoSuchKey')}"), "it no longer exists", True),
        (TimeoutError(), "the store does not respond in time", True),
        (ConnectionResetError("[Errno 104] Connection reset by peer"), "the store cannot be reached", True),
        (OSError("certificate verify failed"), "the certificate of the server is not trusted", False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)  # fmt: skip
def test_reasons(error: Exception, text: str, transient: bool) -> None:
    why, may_pass = reason(error, PLACE)
    assert text in why
    assert may_pass is transient
    assert "PASSWORD" not in why
    assert "RequestId" not in why
    assert "19.3ms" not in why


def test_what_is_missing_is_named() -> None:
    azure = place_of("as://acc/cont/p")
    why, _ = reason(GenericError(f"{URL}404 Not Found: {xml('ContainerNotFound')}"), azure)
    assert "there is no container 'cont' in account 'acc'" in why
    archive = place_of("https://host/x.zip")
    assert reason(GenericError("status code: 404"), archive) == ("there is no such archive", False)
    server = place_of("s3://host:9000/b")
    assert "at http://host:9000" in reason(TimeoutError(), server)[0]
