"""Load reports over gRPC: in the trailers of each call, and as a stream of their own."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from native_client import Client, Port, client_fixture, framed, port_fixture, request
from puppet_server import PuppetLoader, server_over
from rpc_calls import FakeCall

from modserve.core.statistics.load_report import LoadReport
from modserve.frontends.grpc.listener import GrpcListener
from modserve.frontends.grpc.load_reports import SHORTEST, USUAL, LoadReports
from modserve.frontends.http2.headers import literal
from modserve.pb import orca
from modserve.protocol.control import load_report
from modserve.server.local import LocalServer
from modserve.settings import GrpcSettings

REPORT = LoadReport(0.5, 0.25, 0.75, 10.0, 1.0, {"queue.simple": 3.0})
TRAILER = "endpoint-load-metrics-bin"

__all__ = ["client_fixture", "port_fixture"]


def report(port: Port) -> None:
    port.port.report_load(literal(TRAILER.encode(), load_report.trailer(load_report.message(REPORT))))


def parsed(text: str) -> orca.OrcaLoadReport:
    return orca.OrcaLoadReport.FromString(base64.b64decode(text + "=" * (-len(text) % 4)))


@pytest.mark.parametrize(
    ("name", "messages", "status"),
    [
        ("ModelInfer", [framed(request())], 0),
        ("ServerReady", [framed(b"")], 0),
        ("ModelStreamInfer", [framed(request())], 0),
        ("ModelInfer", [framed(request("nosuch"))], 5),
        ("ModelInfer", [framed(b"\xff")], 3),
        ("NoSuch", [framed(b"")], 12),
    ],
    ids=["inference", "probe", "stream", "failure", "garbage", "unknown"],
)
async def test_each_call_has_it_in_its_trailers(
    client: Client, port: Port, name: str, messages: list[bytes], status: int
) -> None:
    assert TRAILER not in (await client.ask(name, *messages)).fields[-1]
    report(port)
    answer = await client.ask(name, *messages)
    assert answer.status == status
    message = parsed(answer.fields[-1][TRAILER])
    assert (message.application_utilization, dict(message.named_metrics)) == (0.75, {"queue.simple": 3.0})
    port.port.report_load(b"")
    assert TRAILER not in (await client.ask(name, *messages)).fields[-1]


class Watcher(FakeCall):
    """Says when something has come."""

    def __init__(self, message: orca.OrcaLoadReportRequest) -> None:
        super().__init__()
        self.message = message
        self.came = asyncio.Event()

    async def write(self, message: object) -> None:
        await super().write(message)  # type: ignore[arg-type]
        self.came.set()


@asynccontextmanager
async def watching(server: LocalServer, seconds: float | None) -> AsyncIterator[tuple[LoadReports, Watcher]]:
    """The call has ended when the block has."""
    reports, message = LoadReports(server), orca.OrcaLoadReportRequest()
    reports.latest = b"first"
    if seconds is not None:
        message.report_interval.seconds = int(seconds)
        message.report_interval.nanos = int(seconds % 1 * 1e9)
    watcher = Watcher(message)
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(30):
        tasks.create_task(reports.StreamCoreMetrics(message, watcher))
        await watcher.came.wait()
        yield reports, watcher


@pytest.fixture
async def server(tmp_path: Path) -> LocalServer:
    made = server_over(tmp_path, PuppetLoader())
    await made.load()
    return made


@pytest.mark.parametrize("seconds", [0.0, -1.0, SHORTEST])
async def test_a_stream_has_the_latest_after_each_interval(server: LocalServer, seconds: float) -> None:
    async with watching(server, seconds) as (reports, watcher):
        assert watcher.written == [b"first"]
        reports.latest = b"second"
        while len(watcher.written) < 2:
            watcher.came.clear()
            await watcher.came.wait()
        assert watcher.written == [b"first", b"second"]
        server.retire()
    assert server.changes.listeners == 0


@pytest.mark.parametrize("end", ["retire", "stop_accepting"])
@pytest.mark.parametrize("seconds", [None, 3600.0])
async def test_a_stream_ends_with_the_server(server: LocalServer, end: str, seconds: float | None) -> None:
    async with watching(server, seconds) as (_, watcher):
        server.changes.notify()  # of something else
        await asyncio.sleep(0)
        getattr(server, end)()
    assert watcher.written == [b"first"]
    assert USUAL > 1


@pytest.mark.parametrize("option", ["off", "request", "text"])
async def test_the_service_is_there_where_reports_are(tmp_path: Path, server: LocalServer, option: str) -> None:
    listener = GrpcListener(server, "127.0.0.1", 0, GrpcSettings(port=0, orca=option))  # type: ignore[arg-type]
    port = await listener.start()
    try:
        listener.report_load(REPORT)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_stream("/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics", None, None)(b"")
            if option == "off":
                with pytest.raises(grpc.RpcError) as refusal:
                    await call.read()
                assert refusal.value.code() is grpc.StatusCode.UNIMPLEMENTED
            else:
                first: Any = await call.read()
                assert orca.OrcaLoadReport.FromString(first).rps_fractional == 10.0
                call.cancel()
    finally:
        await listener.close()
