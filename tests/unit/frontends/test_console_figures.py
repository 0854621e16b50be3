"""What the console reads of a server, adds up over workers, and shows."""

import json
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from puppet_server import PuppetLoader, server_over

from modserve.core.errors import invalid
from modserve.core.statistics.summary import Sketch
from modserve.core.tenants import Tenant
from modserve.core.version import ModelId
from modserve.frontends.http.console.counters import CounterReader, Counters, ModelCounters
from modserve.frontends.http.console.figures import durations, quantiles, recent, sketch_of
from modserve.frontends.http.console.snapshot import Snapshot, encode
from modserve.frontends.http.console.tenants import TenantCounters
from modserve.server.local import LocalServer
from modserve.testing import inflight
from modserve.workers.pages import WorkerPage, document, merge, tables


def added(readings: Sequence[Counters]) -> Any:
    """Figures of several workers."""
    return document(merge([WorkerPage(tables(each)) for each in readings])[0])


@pytest.fixture
async def loader() -> PuppetLoader:
    return PuppetLoader(failures={ModelId("echo", 1): invalid("<b>wrong</b>")})


@pytest.fixture
async def server(tmp_path: Path, loader: PuppetLoader) -> LocalServer:
    server = server_over(tmp_path, loader)
    await server.load()
    return server


@pytest.fixture
def reading(server: LocalServer) -> Counters:
    return CounterReader(server).read()


def model(reading: Counters, name: str = "simple", version: str = "3") -> ModelCounters:
    return next(each for each in reading["models"] if (each["name"], each["version"]) == (name, version))


def counted(reading: Counters, requests: int = 0, batches: int = 0, ns: int = 750_000, **more: Any) -> Counters:
    """A later reading, with so many more requests to `simple`, which took so long each."""
    later = deepcopy(reading)
    counts = model(later)["counts"]
    assert counts is not None
    counts["success"] += requests
    counts["inferences"] += requests
    counts["batches"] += batches
    latency = sketch_of(counts["latency"])
    latency.observe(ns, requests)
    counts["latency"] = durations([latency])
    parts = (ns, 500_000, 0, ns // 5, 0)
    counts["times"] = [before + requests * each for before, each in zip(counts["times"], parts, strict=True)]
    counts |= more  # type: ignore[typeddict-item]
    return later


def shown(event: bytes) -> Any:
    name, data, *_ = event.decode().split("\n")
    assert name in ("event: whole", "event: changes")
    return json.loads(data.removeprefix("data: "))


def test_every_version_is_read_with_its_state_and_its_reason(reading: Counters) -> None:
    assert [(each["name"], each["version"], each["state"]) for each in reading["models"]] == [
        ("echo", "1", "UNAVAILABLE"),
        ("simple", "1", "READY"),
        ("simple", "3", "READY"),
    ]
    failed = model(reading, "echo", "1")
    assert (failed["counts"], "<b>wrong</b>" in failed["reason"]) == (None, True)
    assert reading["server"]["failures"] == 0


def test_what_is_read_of_a_model_that_has_worked(server: LocalServer, loader: PuppetLoader) -> None:
    statistics = loader.loaded[ModelId("simple", 3)].statistics
    statistics.success.count, statistics.pending, statistics.instances, statistics.instances_lost = 7, 2, 4, 1
    statistics.close_reasons["full"] = 3
    reading = CounterReader(server).read()
    row = model(reading)
    counts = row["counts"]
    assert counts is not None
    assert (counts["success"], counts["pending"], counts["closed"]) == (7, 2, {"full": 3})
    assert (row["instances"], row["lost"], row["memory"]) == (4, 1, -1)
    assert json.loads(encode(reading)) == json.loads(json.dumps(reading)), "values that JSON has"


def test_a_reading_is_of_what_serves_now(server: LocalServer, loader: PuppetLoader) -> None:
    reader = CounterReader(server)
    reader.read()
    old = loader.loaded[ModelId("simple", 3)]
    old.statistics = type(old.statistics)()
    old.statistics.success.count = 3
    counts = model(reader.read())["counts"]
    assert counts is not None
    assert counts["success"] == 3


def test_the_first_picture_is_whole_and_has_no_rates(reading: Counters) -> None:
    snapshot = Snapshot()
    snapshot.next(reading, 10.0, 1)
    whole = shown(snapshot.whole())
    assert set(whole["models"]) == {"1:echo", "1:simple", "3:simple"}
    for name in ("requests", "inferences", "batches", "hits", "misses"):
        assert (whole["models"]["3:simple"][name], whole["server"][name]) == (0, 0), name
    assert whole["models"]["3:simple"]["failed"] == 0
    assert "workers" not in whole["server"]


def test_rates_are_those_of_the_time_between_two_readings(reading: Counters) -> None:
    snapshot = Snapshot()
    snapshot.next(reading, 10.0, 1)
    later = counted(reading, 40, 10, 750_000, failures={"OTHER": 10}, closed={"full": 10}, pending=2)
    later["server"]["failures"] = 30
    later["server"]["cpu_s"] += 1.0
    changes = shown(snapshot.next(later, 12.0, 2))
    assert set(changes["models"]) == {"3:simple"}
    row = changes["models"]["3:simple"]
    assert row["parts"] == [0.5, 0, 0.15, 0]
    assert row["advice"].startswith("67 % of the time is spent in the queue: ")
    assert (row["requests"], row["failed"], row["batch"], row["batches"], row["pending"]) == (25, 5, 4, 5, 2)
    assert (row["p50"], row["p99"]) == (0.75, 0.75), "the exact time, of requests that took the same"
    assert "name" not in row, "it has not changed"
    server = changes["server"]
    assert (server["requests"], server["failed"], server["cpu"], server["p99"]) == (25, 15, 0.5, row["p99"])


def test_who_is_quiet_again_says_so_once(reading: Counters) -> None:
    snapshot = Snapshot()
    snapshot.next(reading, 10.0, 1)
    later = counted(reading, 40, 10)
    snapshot.next(later, 11.0, 2)
    row = shown(snapshot.next(deepcopy(later), 12.0, 3))["models"]["3:simple"]
    assert (row["requests"], row["p50"]) == (0, None)
    assert shown(snapshot.next(deepcopy(later), 13.0, 4))["models"] == {}


def test_a_model_that_was_loaded_anew_counts_from_the_beginning(reading: Counters) -> None:
    snapshot = Snapshot()
    snapshot.next(counted(reading, 40, 10), 10.0, 1)
    row = shown(snapshot.next(counted(reading, 3, 1), 11.0, 2))["models"]["3:simple"]
    assert "requests" not in row, "still none"
    assert row["total"]["success"] == 3


def test_the_parts_of_the_time_are_those_of_the_last_second_with_requests(reading: Counters) -> None:
    def parts(event: bytes) -> Any:
        return shown(event)["models"]["3:simple"].get("parts", "as before")

    snapshot = Snapshot()
    first = counted(reading, 4, ns=1_000_000)
    assert parts(snapshot.next(first, 10.0, 1)) == [0.5, 0, 0.2, 0], "since the load"
    second = counted(first, 4, ns=5_000_000)
    assert parts(snapshot.next(second, 11.0, 2)) == [0.5, 0, 1, 0]
    assert parts(snapshot.next(second, 12.0, 3)) == "as before"
    counts = model(added([second, second]))["counts"]
    assert counts is not None
    assert counts["times"] == [2 * 4 * each for each in (6_000_000, 1_000_000, 0, 1_200_000, 0)]


def test_what_is_gone_is_said_and_not_shown(reading: Counters) -> None:
    snapshot = Snapshot()
    snapshot.next(reading, 10.0, 1)
    later = deepcopy(reading)
    later["models"] = later["models"][1:]
    assert shown(snapshot.next(later, 11.0, 2))["gone"] == ["1:echo"]
    assert set(shown(snapshot.whole())["models"]) == {"1:simple", "3:simple"}


def test_quantiles_are_of_what_came_between_two_readings() -> None:
    then, now = Sketch(), Sketch()
    for sketch, times in ((then, 1), (now, 3)):
        sketch.observe(5_000_000, times)
    assert quantiles(recent(durations([now]), durations([then]))) == [5, 5]
    assert quantiles(recent(durations([then]), durations([now]))) == [None, None], "begun anew"
    assert quantiles(Sketch()) == [None, None]


def test_half_a_character_is_no_reason_to_show_nothing() -> None:
    assert encode({"reason": "a\udcffb"}) == b'{"reason": "a?b"}'


# Several workers


def test_counts_of_workers_add_up(reading: Counters) -> None:
    first = counted(reading, 40, 10, 1_000_000, closed={"full": 4})
    second = counted(reading, 2, 2, 9_000_000, closed={"delay": 2})
    first["server"]["failures"], second["server"]["failures"] = 3, 4
    total = added([first, second])
    counts = model(total)["counts"]
    assert counts is not None
    assert (counts["success"], counts["batches"]) == (42, 12)
    assert quantiles(sketch_of(counts["latency"])) == [pytest.approx(1, rel=0.01), 9]
    assert counts["closed"] == {"full": 4, "delay": 2}
    assert (total["server"]["failures"], model(total)["state"]) == (7, "READY")
    assert total["server"]["rss"] == 2 * reading["server"]["rss"]
    assert total["server"]["recorded"] == reading["server"]["recorded"] == -1
    first["server"]["recorded"], second["server"]["recorded"] = 0, 5
    assert added([first, second])["server"]["recorded"] == 5
    assert added([first]) == first


def test_of_states_the_one_that_is_not_ready_is_shown(reading: Counters) -> None:
    other = deepcopy(reading)
    model(other)["state"], model(other)["counts"] = "LOADING", None
    other["server"]["ready"] = False
    total = added([reading, other])
    assert model(total)["state"] == "LOADING"
    assert model(total)["counts"] == model(reading)["counts"]
    assert total["server"]["ready"] is False


def test_workers_are_said_with_the_figures(reading: Counters) -> None:
    snapshot = Snapshot()
    event = snapshot.next(reading, 10.0, 1, {"serving": 1, "count": 2, "restarts": 3})
    assert shown(event)["server"]["workers"] == {"serving": 1, "count": 2, "restarts": 3}


# Tenants


def tenant(accepted: int, refused: int, rows: int, in_flight: int = 0, waiting: int = 0) -> TenantCounters:
    return {"accepted": accepted, "refused": refused, "rows": rows, "in_flight": in_flight, "waiting": waiting}


def test_without_tenants_nothing_is_said_of_them(reading: Counters) -> None:
    snapshot = Snapshot()
    assert "tenants" not in shown(snapshot.next(reading, 10.0, 1))["server"]


def test_what_is_read_of_tenants(server: LocalServer) -> None:
    entry = inflight(3, tenant=Tenant("a"))
    server.quotas.accept(entry.request, 3, lambda request: entry)
    assert CounterReader(server).read()["tenants"] == {"a": tenant(1, 0, 3, 1)}


def test_rates_and_shares_of_tenants(reading: Counters) -> None:
    snapshot = Snapshot()
    reading["tenants"] = {"a": tenant(10, 5, 100)}
    (row,) = shown(snapshot.next(reading, 10.0, 1))["server"]["tenants"]
    assert (row["requests"], row["share"], row["refused"], row["refused_total"]) == (0, None, 0, 5)
    later = deepcopy(reading)
    later["tenants"] = {"a": tenant(20, 5, 130, 2, 1), "b": tenant(40, 20, 10)}
    first, second = shown(snapshot.next(later, 12.0, 2))["server"]["tenants"]
    assert first == {
        "name": "b",
        "requests": 30,
        "share": 0.25,
        "waiting": 0,
        "in_flight": 0,
        "refused": 10,
        "refused_total": 20,
    }
    assert (second["name"], second["requests"], second["share"], second["waiting"]) == ("a", 5, 0.75, 1)


def test_tenants_of_workers_add_up_and_the_busiest_are_shown(reading: Counters) -> None:
    other = deepcopy(reading)
    reading["tenants"] = {f"t{number}": tenant(number, 0, number) for number in range(80)}
    other["tenants"] = {"t79": tenant(1, 2, 3, 4, 5)}
    total = added([reading, other])
    assert total["tenants"]["t79"] == tenant(80, 2, 82, 4, 5)
    snapshot = Snapshot()
    empty = deepcopy(reading)
    empty["tenants"] = {}
    snapshot.next(empty, 1.0, 1)
    rows = shown(snapshot.next(total, 2.0, 2))["server"]["tenants"]
    assert [row["name"] for row in rows] == [f"t{number}" for number in range(79, 29, -1)]
