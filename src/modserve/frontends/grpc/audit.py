"""Calls over gRPC in the audit log."""

from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from modserve.core.wire import grpc_status
from modserve.frontends.audit import MOST_CHANGE, RPCS, SETTINGS_RPCS, AuditEntry
from modserve.observability.audit_log import AuditLog
from modserve.protocol.grpc.infer_message import InferMessage

from .heads import CANCELLED, INTERNAL, OK
from .rpc import Refusal, Response, RpcCall


class RpcAudit:
    """Server of the calls that change something, which it records."""

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit

    def entry_of(self, rpc: str) -> AuditEntry | None:
        """Return the entry of a call; None for a call that changes nothing."""
        return AuditEntry("gRPC", rpc) if rpc in RPCS else None

    async def serve(
        self, entry: AuditEntry, call: RpcCall, unary: Callable[[AuditEntry], Awaitable[Response | Refusal]]
    ) -> Response | Refusal:
        """Serve a call by `unary`, with its audit entry, and return its outcome."""
        status = CANCELLED
        try:
            outcome = await unary(entry)
            status = OK
            if isinstance(outcome, Refusal):
                status, entry.error = outcome.status, outcome.message
            return outcome
        except Exception:
            status = INTERNAL
            raise
        finally:
            if status != OK or entry.call not in SETTINGS_RPCS or entry.change is not None:
                entry.request_id = call.request_id
                known = entry.identity is not None or status == OK
                entry.record(self._audit, call.origin, grpc_status.name_of(status), known=known)

    def describe(self, entry: AuditEntry, message: Message | InferMessage) -> None:
        """Add the call's message to the entry."""
        values: Any = message
        if entry.call.endswith(("MemoryRegister", "MemoryUnregister")):
            entry.region = values.name
            return
        entry.model = values.model_name if entry.call != "LogSettings" else ""
        if entry.call in SETTINGS_RPCS and values.settings and values.ByteSize() <= MOST_CHANGE:
            entry.change = MessageToDict(values, preserving_proto_field_name=True)["settings"]
