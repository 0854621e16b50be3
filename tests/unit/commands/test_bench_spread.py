"""A benchmark's connections to several servers, and the figures of each."""

import errno
from array import array
from collections import Counter
from collections.abc import Sequence

import pytest
from bench_fakes import MS, Factory, FakeSlot, open_loop
from scripted_servers import ScriptedServer, refusing

from modserve.client.transport import STATISTICS
from modserve.commands.bench.command import _flat
from modserve.commands.bench.loops import ClosedLoop
from modserve.commands.bench.measures import LoadLevel, MeasurementWindow, summary, to_json
from modserve.commands.bench.plan import bench_parser, read
from modserve.commands.bench.profiler import MeasurementRules
from modserve.commands.bench.show import remarks, share_rows, table
from modserve.commands.bench.slots import RequestSlot, ResponseListener, ServerShare, SpreadSlots, clock, spread
from modserve.commands.bench.target import ServerStatistics
from modserve.commands.syntax import UsageError


class DeadFactory:
    async def open(self, owner: ResponseListener, count: int) -> Sequence[RequestSlot]:
        raise OSError(errno.ECONNREFUSED, "Connection refused")


def three() -> tuple[SpreadSlots, list[Factory]]:
    factories = [Factory() for _ in range(3)]
    return SpreadSlots({f"http://s{index}": factory for index, factory in enumerate(factories)}), factories


def test_one_server_needs_no_turns() -> None:
    factory = Factory()
    assert spread({"http://s": factory}) is factory


async def test_connections_take_turns() -> None:
    slots, factories = three()
    loop = ClosedLoop(4, slots, 1, 60)
    await loop.start()
    assert [len(factory.slots) for factory in factories] == [2, 1, 1]
    factories[0].slots[0].respond()
    factories[1].slots[0].respond("503: full")
    window = loop.take_window()
    assert [(len(share.latencies), share.failures) for share in window.shares] == [(1, 0), (0, 1), (0, 0)]
    assert window.shares[0].latencies == window.latencies
    assert [(len(share.latencies), share.failures) for share in loop.take_window().shares] == [(0, 0)] * 3
    await loop.stop(0)
    await slots.open(loop, 3)
    assert [len(factory.slots) for factory in factories] == [3, 2, 2]
    assert slots.url(factories[2].slots[0]) == "http://s2"


async def test_an_open_loop_uses_the_connection_that_was_free_longest() -> None:
    slots, factories = three()
    loop, timers = open_loop(slots, 1, 6)
    await loop.start()
    loop._add(await slots.open(loop, 5))
    sent: list[FakeSlot] = []
    for _ in range(6):
        loop._due = float(clock())
        timers.callback()
        for factory in factories:
            for slot in factory.slots:
                if slot.start:
                    sent.append(slot)
                    slot.respond()
    await loop.stop(0)
    assert Counter(slots.url(slot) for slot in sent).keys() == {"http://s0", "http://s1", "http://s2"}


async def test_a_server_that_cannot_be_connected_to_is_named() -> None:
    slots = SpreadSlots({"http://a": Factory(), "http://b": DeadFactory()})
    with pytest.raises(OSError, match="http://b: Connection refused"):
        await slots.open(ClosedLoop(2, slots, 1, 60), 2)


def window(*counts: tuple[int, int]) -> MeasurementWindow:
    shares = [
        ServerShare(f"http://s{index}", array("q", [(index + 1) * MS] * count), failures)
        for index, (count, failures) in enumerate(counts)
    ]
    latencies = array("q", [value for share in shares for value in share.latencies])
    return MeasurementWindow(1.0, latencies, Counter({"x": sum(failures for _, failures in counts)}), shares=shares)


def test_the_figures_of_each_server() -> None:
    """Those of the windows that the result is made of."""
    windows = [window((1000, 9), (0, 0)), *(window((10, 1), (20, 0)) for _ in range(3))]
    result = summary(LoadLevel(False, 4), windows, 1, 10, 99)
    assert [(each.url, each.requests, each.rate, each.mean, each.failed) for each in result.servers] == [
        ("http://s0", 30, 10, 1, 3),
        ("http://s1", 60, 20, 2, 0),
    ]
    assert sum(each.requests for each in result.servers) == result.requests
    assert to_json(result)["servers"][1]["latency_ms"] == {"mean": 2, "p50": 2, "p99": 2}
    assert share_rows([result])[1][1] == ["concurrency 4", "http://s1", "20.0", "2.00", "2.00", "2.00", "0"]
    assert "Each server, client-side latency in ms:" in list(table([result], MeasurementRules()))


def test_the_lines_of_csv_have_no_servers() -> None:
    result = summary(LoadLevel(False, 4), [window((10, 1), (20, 0))] * 3, 1, 10, 99)
    flat = dict(_flat(to_json(result)))
    assert flat["requests"] == 90
    assert "servers" not in flat


def test_servers_of_two_protocols() -> None:
    with pytest.raises(UsageError, match="expected servers of one protocol, got: HTTP and gRPC"):
        read(bench_parser().read(["m", "--url=http://a,grpc://b"]))


def test_a_server_without_requests_is_remarked() -> None:
    result = summary(LoadLevel(False, 1), [window((10, 0), (0, 0))] * 3, 1, 10, 99)
    assert "concurrency 1: 1 server got no request: the load has fewer connections" in list(
        remarks([result], MeasurementRules(), None)
    )


async def test_statistics_add_up() -> None:
    """Those of some servers only would be less than the load."""
    servers = [ScriptedServer(f"http://s{index}", {}) for index in range(2)]
    for server in servers:
        row = {"name": "m", "version": "1", "inference_stats": {"success": {"count": 3, "ns": 6}}}
        server.counts = {"model_stats": [row, row | {"version": "2"}]}
    statistics = ServerStatistics(servers, "m", None)
    total = await statistics()
    assert total is not None
    assert (total.requests, total.total_ns) == (12, 24)
    servers[1].on_call = refusing(STATISTICS, times=1)
    assert await statistics() is None
    assert await statistics() is None
    assert servers[0].calls.count("ModelStatistics") == 2
