"""``xds.service.orca.v3.OpenRcaService``: the load of the server for clients that keep a stream to it."""

import asyncio
from contextlib import suppress
from typing import Final

from modserve.pb import orca
from modserve.server import Phase, Server

from .rpc import RpcCall

SHORTEST: Final = 0.1
"""Seconds between two reports of a stream: new ones are not made more often."""
USUAL: Final = 10.0
"""Seconds between two reports if the client names no interval."""


class LoadReports:
    """The calls that are served, each named like its RPC. `latest`: the serialised report, which its port renews."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.latest = b""

    async def StreamCoreMetrics(self, message: orca.OrcaLoadReportRequest, call: RpcCall) -> None:
        """Send the load at once, and after each interval. The call ends when the server stops."""
        duration = message.report_interval
        interval = (
            max(SHORTEST, duration.seconds + duration.nanos / 1e9) if message.HasField("report_interval") else USUAL
        )
        changed = asyncio.Event()
        with self._server.changes.listening(changed.set):
            while True:
                await call.write(self.latest)
                due = asyncio.get_running_loop().time() + interval
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(due):
                        while not self._ends:
                            changed.clear()
                            await changed.wait()
                if self._ends:
                    return

    @property
    def _ends(self) -> bool:
        return self._server.retiring or self._server.phase is Phase.STOPPING
