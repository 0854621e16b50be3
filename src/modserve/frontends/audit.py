"""Audit-log entries of calls, for every protocol."""

from typing import Final

from modserve.access.identity import Identity
from modserve.access.permissions import RPC_NEEDS, need_of
from modserve.core.requests.origin import Origin
from modserve.observability.audit_log import AuditLog

MOST_CHANGE: Final = 2000
"""Maximum size of a logged request, in bytes."""

_KINDS: Final = ("control", "admin")
_ACTIONS: Final = ("load", "unload", "register", "unregister")
"""Last path segments of calls that change something, whatever the method."""

RPCS: Final = frozenset(
    name for name, need in RPC_NEEDS.items() if need.kind in _KINDS and not name.endswith("MemoryStatus")
)
"""RPCs that change something. `SETTINGS_RPCS` do so only if their message contains settings."""
SETTINGS_RPCS: Final = frozenset(("LogSettings", "TraceSetting"))
_LOGGED_SUFFIXES: Final = ("/logging", "/trace/setting", "/routing")
"""Suffixes of paths with requests that may be logged. Other requests may be files or contain a model's secrets."""


class AuditEntry:
    """Audit-log entry of a call that changes something, if it is served."""

    def __init__(self, protocol: str, call: str, model: str = "") -> None:
        self.protocol = protocol
        self.call = call
        self.model = model
        self.identity: Identity | None = None
        """The caller, if the server checks keys and the caller has one."""
        self.region = ""
        """Name of the shared-memory region."""
        self.change: object = None
        """Content of the request, as JSON values."""
        self.error = ""
        self.request_id = ""

    def record(self, audit: AuditLog, origin: Origin, status: int | str, *, known: bool) -> None:
        """Write the entry of the finished call."""
        identity = self.identity
        who = (
            {}
            if identity is None
            else {"caller": identity.name, "origin": identity.origin, "tenant": identity.tenant.name}
        )
        values: dict[str, object] = {
            "protocol": self.protocol,
            **who,
            "call": self.call,
            "model": self.model,
            "region": self.region,
            "change": self.change,
            "status": status,
            "error": self.error,
            "request_id": self.request_id,
        }
        audit.record(values, origin, known=known)


def entry_of(method: str, path: str) -> AuditEntry | None:
    """Return the entry of a call over HTTP; None for a call that changes nothing."""
    need, model = need_of(method, path)
    last = path.rpartition("/")[2]
    if need.kind not in _KINDS or method == "OPTIONS" or last == "status":
        return None
    if method in ("GET", "HEAD") and last not in _ACTIONS:
        return None
    entry = AuditEntry("HTTP", f"{method} {path}", model)
    parts = path.split("/")
    if "region" in parts[:-1]:
        entry.region = parts[parts.index("region") + 1]
    return entry


def shows_request(path: str) -> bool:
    """True if the log may contain requests to this path."""
    return path.endswith(_LOGGED_SUFFIXES)
