"""Busy streams on one connection: the frames with which clients give windows back are never too many."""

import grpc
import pytest
from busy_streams import CLIENTS, PINGS, Tally
from server_process import ServerProcess
from test_perf_analyzer import profile
from tritonclient.grpc import service_pb2
from wire import HOST, SECONDS, metric, stub

pytestmark = pytest.mark.slow

RESPONSES = 8_000
LONG = 24_000
"""Before there are so many, WINDOW_UPDATEs were too many where they had the budget of all other frames."""

BURST = 3_000

ROWS = [
    ("grpcio", 4, LONG),
    ("grpcio", 1, RESPONSES),
    ("grpcio", 16, RESPONSES),
    ("grpcio", 100, RESPONSES),
    ("grpcio.aio", 4, RESPONSES),
    ("grpcio.aio", 64, RESPONSES),
    ("tritonclient", 4, RESPONSES),
    ("tritonclient.aio", 16, RESPONSES),
]


@pytest.mark.parametrize(("client", "streams", "count"), ROWS)
def test_no_call_is_lost(server: ServerProcess, client: str, streams: int, count: int) -> None:
    ended = ended_connections(server)
    tally = Tally(count=count)
    CLIENTS[client](server.grpc_port, streams, tally)
    assert not tally.failures, str(tally)
    assert tally.received == tally.sent >= count
    assert tally.unary > 0
    assert ended_connections(server) == ended


def ended_connections(server: ServerProcess) -> dict[str, float]:
    """Connections that the server has ended, by reason."""
    reasons = ("window_updates", "noise", "resets", "pings", "protocol")
    return {reason: metric(server, "modserve_grpc_connections_ended_total", reason=reason) for reason in reasons}


def test_bursts_of_responses(server: ServerProcess) -> None:
    """They are sent before the first is read: a client gives their windows back when it comes to them."""
    asked = service_pb2.ModelInferRequest(model_name="repeat")
    for name, datatype, width in (("IN", "INT32", BURST), ("DELAY", "UINT32", BURST), ("WAIT", "UINT32", 1)):
        asked.inputs.add(name=name, datatype=datatype, shape=(width,))
        asked.raw_input_contents.append(bytes(4 * width))
    with grpc.insecure_channel(f"{HOST}:{server.grpc_port}", PINGS) as opened:
        for _ in range(4):
            responses = list(stub(opened).ModelStreamInfer(iter([asked]), timeout=SECONDS))
            assert [each.error_message for each in responses] == [""] * BURST


def test_perf_analyzer_with_streams(server: ServerProcess) -> None:
    options = ["-i", "grpc", "--async", "--streaming", "--concurrency-range=4", f"--request-count={RESPONSES}"]
    (report,) = profile(server, "simple", options)
    assert report.requests >= RESPONSES
