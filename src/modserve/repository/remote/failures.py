"""Failures of remote repositories, and what to do about them. No text here has a secret in it.

Libraries include the URL of a failed request, which may be signed, and the times it took. Only the status, and the code
and message of the store are kept, so that the same failure has the same words each time.
"""

import re

from modserve.core.errors import Code, ModserveError
from modserve.core.files.remote_place import RemotePlace

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>\s*([\w.-]{1,80})\s*</Code>|\"reason\":\s*\"([\w.-]{1,80})\"")
_MESSAGE = re.compile(r"<Message>\s*([^<\n\r]{1,200})")
_CONNECTING = re.compile(
    r"error sending request|kind: (?:Connect|Timeout|Interrupted)|TimedOut|timed? ?out|"
    r"connection (?:refused|reset)|dns error|name or service not known|name resolution|unreachable",
    re.IGNORECASE,
)
_MISSING = frozenset({"NoSuchBucket", "ContainerNotFound", "InvalidBucketName"})
_OTHER_REGION = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"})
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})

_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, for temporary ones, AWS_SESSION_TOKEN",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "as": "AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY",
    "hf": "HF_TOKEN, and the name: the hub does not say whether a model of others is there",
    "http": "user and password, or the signature, in the URL",
}
_LISTING = {
    "s3": "s3:ListBucket and s3:GetObject",
    "gs": "storage.objects.list and storage.objects.get",
    "as": "to list and to read blobs",
    "hf": "to read the model",
    "http": "to read it",
}


_WRITING = {
    "s3": "s3:PutObject and s3:DeleteObject",
    "gs": "storage.objects.create and storage.objects.delete",
    "as": "to write and to delete blobs",
}


class StoreError(ModserveError):
    """A failure of a store or of its answers. `transient`: trying again later may help, without anybody's doing."""

    def __init__(self, code: Code, message: str, transient: bool = False) -> None:
        super().__init__(code, message)
        self.transient = transient

    def __reduce__(self) -> tuple[type["StoreError"], tuple[Code, str, bool]]:
        return type(self), (self.code, self.message, self.transient)


def unreadable(place: RemotePlace, why: str, *, transient: bool = False) -> StoreError:
    """Return the error for a repository that cannot be read: INVALID_ARG, as `Repository` wants it."""
    return StoreError(Code.INVALID_ARG, f"cannot read model repository '{place}': {why}", transient)


def broken(place: RemotePlace, path: str, why: str, *, transient: bool = True) -> StoreError:
    """Return the error for a file that cannot be downloaded, which is the failure of its model alone."""
    return StoreError(Code.UNAVAILABLE, f"cannot download '{path}' from '{place}': {why}", transient)


def unwritten(place: RemotePlace, path: str, why: str) -> StoreError:
    """Return the error for a file that cannot be put into the store."""
    return StoreError(Code.UNAVAILABLE, f"'{place}/{path}' cannot be written: {why}")


def reason(error: BaseException, place: RemotePlace, *, writing: bool = False) -> tuple[str, bool]:
    """Return the meaning of a library's exception, with what to do, and whether trying again may help."""
    text = str(error)
    kind = type(error).__name__
    status = int(match[1]) if (match := _STATUS.search(text)) else 0
    code = next(filter(None, match.groups()), "") if (match := _CODE.search(text)) else ""
    said = f" ({code}{f': {message[1].strip()}' if (message := _MESSAGE.search(text)) else ''})" if code else ""
    if status == 404 and place.scheme == "hf":
        return f"there is no model '{place.bucket}' with a revision '{place.prefix}'", False
    if code in _MISSING or (status == 404 and place.scheme != "http" and not code):
        what = (
            f"container '{place.bucket}' in account '{place.account}'" if place.account else f"bucket '{place.bucket}'"
        )
        return f"there is no {what}{said}; check the name, and the server or region", False
    if status == 404 and place.scheme == "http":
        return "there is no such archive", False
    if code in _OTHER_REGION or status == 301:
        return f"the bucket is in another region{said}: set AWS_DEFAULT_REGION", False
    if isinstance(error, FileNotFoundError):
        return "it no longer exists", True
    if kind == "UnauthenticatedError" or status == 401:
        return f"the store does not accept the credentials{said}: check {_CREDENTIALS[place.scheme]}", False
    if kind == "PermissionDeniedError" or status == 403:
        check, rights = _CREDENTIALS[place.scheme], (_WRITING if writing else _LISTING)[place.scheme]
        return f"permission denied{said}: check {check}, and that they allow {rights}", False
    if kind == "PreconditionError" or status == 412:
        return "it changed while it was read", True
    if status in _TRANSIENT:
        return f"the store fails with status {status}{said}", True
    if "kind: Body" in text and "TimedOut" not in text:
        return "the transfer was interrupted", True
    if isinstance(error, TimeoutError) or _CONNECTING.search(text):
        slow = isinstance(error, TimeoutError) or "Timeout" in text or "TimedOut" in text or "timed out" in text.lower()
        how = "the store does not respond in time" if slow else "the store cannot be reached"
        where = f" at {place.endpoint}" if place.endpoint else ""
        return f"{how}{where}; check the network and the server's address", True
    if "certificate" in text.lower():
        return "the certificate of the server is not trusted: add its certificate authority to the system's", False
    if "builder error" in text or "BadScheme" in text:
        return "the address of the server is not a valid http:// or https:// URL", False
    if status:
        return f"the store responds with status {status}{said}", False
    if _credentials_missing(text):
        return f"the library found no credentials: set {_CREDENTIALS[place.scheme]}", False
    return f"the transfer was interrupted ({kind})", True


def _credentials_missing(text: str) -> bool:
    return "169.254.169.254" in text or "metadata.google.internal" in text or "InstanceCredential" in text
