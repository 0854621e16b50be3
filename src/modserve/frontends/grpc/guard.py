"""Authentication and authorization of the callers of RPCs."""

from modserve.access import caller, credentials
from modserve.access.authority import Authority
from modserve.access.permissions import RPC_NEEDS
from modserve.frontends.audit import AuditEntry

from .rpc import RpcCall


class RpcGuard:
    """Guard that lets the handlers of calls ask their server in the caller's name, in the task of each call."""

    def __init__(self, authority: Authority) -> None:
        self.authority = authority

    async def admit(self, rpc: str, call: RpcCall, entry: AuditEntry | None = None) -> None:
        """Admit a call, and put its caller into `entry`. Raises what prevents it, such as `UnauthenticatedError`."""
        need, shown, authority = RPC_NEEDS[rpc], call.credentials, self.authority
        identity = authority.recognise(shown)
        if identity is None and not authority.is_open(need):
            if not shown:
                raise credentials.missing(b"")
            identity = await authority.authenticate(shown, call.origin.peer)
        if identity is not None:
            call.set_identity(identity)
            if entry is not None:
                entry.identity = identity
        caller.enter(authority, shown, identity, need)
