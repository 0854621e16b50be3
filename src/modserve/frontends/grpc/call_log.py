"""Access-log figures of one gRPC call; a call that is not logged has none.

The requests of a ``ModelStreamInfer`` are logged one by one, by `stream`; the call itself is logged if it fails.
"""

import time
from typing import TYPE_CHECKING, final

from modserve.core.requests.origin import Origin
from modserve.frontends import access as entries
from modserve.observability.access_log import AccessLog

from . import heads

if TYPE_CHECKING:
    from modserve.frontends.call import InferenceCall


@final
class CallLog:
    """Counters of a call's bytes and messages, for its log entry."""

    def __init__(self, access: AccessLog) -> None:
        self._access = access
        self._began_ns = time.monotonic_ns()
        self.inference: InferenceCall | None = None
        """The one that the call is."""
        self.tenant = ""
        """Tenant of the caller, where callers have keys."""
        self.received = self.sent = self.responses = 0
        """Bytes of messages, and messages that were sent."""

    def count_response(self, size: int) -> None:
        self.sent += size
        self.responses += 1

    def record(self, head: heads.GrpcHead, origin: Origin, status: int, request_id: str) -> None:
        """Log the call, which is over. `status` is -1 if the connection ended it before it had one."""
        name = origin.call
        if status < 0:
            status = heads.CANCELLED
        if name == "ModelStreamInfer" and status in (heads.OK, heads.CANCELLED):
            return
        call, self.inference = self.inference, None
        counts = status, self.received, self.sent
        if call is not None:
            call.request_id = request_id
            entries.record(self._access, call, name, *counts, 1, self._began_ns)
            return
        entry = "gRPC", origin, name, "", -1, *counts, self.responses
        self._access.record(*entry, "", request_id, self._began_ns, 0, None, "", self.tenant)
