"""The caller of the call that a task serves, and what it may do.

A front end that has identified the caller sets `CALLER` in the task that serves the call. All that the call asks of the
server is then checked against it, by the model that it names: `server.scoped`.
"""

from contextvars import Context, ContextVar, copy_context
from typing import Final

from modserve.core.errors import ModserveError, PermissionDeniedError, UnauthenticatedError, internal
from modserve.core.tenants import Tenant
from modserve.core.version import unknown_model

from .authority import Authority
from .credentials import NO_KEY, Credentials
from .identity import CallKind, Identity
from .permissions import CallNeed, CallScope


class Caller:
    """The caller and the kind of its call. `identity` is None for a caller without one, at calls that are open."""

    __slots__ = ("_authority", "_credentials", "_generation", "_identity", "kind")

    def __init__(
        self, authority: Authority, credentials: Credentials, identity: Identity | None, kind: CallKind
    ) -> None:
        self._authority = authority
        self._credentials = credentials
        self._identity = identity
        self._generation = authority.generation
        self.kind = kind

    @property
    def identity(self) -> Identity | None:
        """The identity at present: a call may last longer than its key. Raises `UnauthenticatedError`."""
        identity, authority = self._identity, self._authority
        if identity is None:
            return None
        if self._generation != authority.generation or authority.expired(identity):
            identity = self._identity = authority.resolve(self._credentials)
            self._generation = authority.generation
        return identity

    @property
    def tenant(self) -> Tenant | None:
        return None if self._identity is None else self._identity.tenant

    def sees(self, model: str) -> bool:
        """True if the caller may know of the model."""
        identity = self.identity
        return identity is not None and identity.sees(model)

    def may(self, model: str) -> bool:
        """True if the call may concern the model."""
        identity = self.identity
        return identity is not None and identity.allows(self.kind, model)

    def may_ask_about(self, tenant: str) -> bool:
        """True if the caller may know what a tenant does: its own, or with a right to all models, any."""
        identity = self.identity
        return identity is not None and (identity.tenant.name == tenant or identity.may_everywhere(self.kind))

    def check(self, model: str) -> None:
        """The call concerns the model. Raises NOT_FOUND or `PermissionDeniedError`."""
        identity = self.identity
        if identity is None or not identity.allows(self.kind, model):
            raise refusal(identity, self.kind, model)

    def check_server(self) -> None:
        """The call concerns the server as a whole. Raises `UnauthenticatedError` or `PermissionDeniedError`."""
        _check_server(self.identity, self.kind)


CALLER: Final[ContextVar[Caller | None]] = ContextVar("caller", default=None)


def current() -> Caller:
    """The caller of the call that the current task serves. Raises where it was not identified, which is a bug."""
    caller = CALLER.get()
    if caller is None:
        raise internal("nobody has found out who calls: this is a bug")
    return caller


def context_of(authority: Authority, credentials: Credentials, identity: Identity) -> Context:
    """Return the context for code that serves a caller's inference, or another call with the same need."""
    context = copy_context()
    context.run(CALLER.set, Caller(authority, credentials, identity, "infer"))
    return context


def refusal(identity: Identity | None, kind: CallKind, model: str) -> ModserveError:
    """Return the error for a call that may not concern the model. A model the caller must not see is unknown."""
    if identity is None or not identity.sees(model):
        return unknown_model(model)
    return _make_denial(identity, kind, f"model '{model}'", model)


def enter(authority: Authority, credentials: Credentials, identity: Identity | None, need: CallNeed) -> None:
    """The call of the current task is this caller's. Raises `UnauthenticatedError` or `PermissionDeniedError`."""
    if need.reach is CallScope.SERVER:
        _check_server(identity, need.kind)
    elif not authority.is_open(need):
        if identity is None:
            raise UnauthenticatedError(NO_KEY)
        if need.reach in (CallScope.MODEL, CallScope.LIST) and not identity.may(need.kind):
            raise _make_denial(identity, need.kind, "any model", "")
    CALLER.set(Caller(authority, credentials, identity, need.kind))


def _check_server(identity: Identity | None, kind: CallKind) -> None:
    if identity is None:
        raise UnauthenticatedError(NO_KEY)
    if not identity.may_everywhere(kind):
        raise _make_denial(identity, kind, "all models", "*")


def _make_denial(identity: Identity, kind: CallKind, of: str, model: str) -> PermissionDeniedError:
    scope = f"{kind}:{model}" if model else kind
    safe = "".join(each if each.isascii() and each.isprintable() and each not in '"\\' else "?" for each in scope)
    return PermissionDeniedError(
        f"this call needs the scope '{kind}' for {of}, which the {identity.origin} '{identity.name}' does not have",
        f'Bearer error="insufficient_scope", scope="{safe}"',
    )
