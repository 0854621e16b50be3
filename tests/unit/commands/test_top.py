"""What ``modserve top`` reckons and shows."""

import io
import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from modserve.client.transport import HEALTH, INDEX, Operation
from modserve.commands import terminal
from modserve.commands.destination import Destination, address
from modserve.commands.errors import RefusedError, UnreachableError
from modserve.commands.remote_server import RemoteServer
from modserve.commands.status_report import VersionUsage
from modserve.commands.top import command as top
from modserve.commands.top import frame as top_frame
from modserve.commands.top import view
from modserve.commands.top.figures import TopRow, TopSnapshot, from_metrics, from_statistics, rows, samples
from modserve.commands.top.source import SnapshotSource

PAGE = """\
# HELP nv_inference_request_success Requests
nv_inference_request_success{model="a",version="1"} %(requests)s
nv_inference_request_failure{model="a",version="1",reason="OTHER"} 1.0
nv_inference_request_failure{model="a",version="1",reason="BACKEND"} 2.0
nv_inference_count{model="a",version="1"} %(inferences)s
nv_inference_exec_count{model="a",version="1"} %(executions)s
nv_inference_request_duration_us{model="a",version="1"} %(us)s
nv_inference_queue_duration_us{model="a",version="1"} %(queue)s
nv_inference_compute_infer_duration_us{model="a",version="1"} %(infer)s
nv_inference_pending_request_count{model="a",version="1"} 4.0
modserve_request_durations{model="a",seconds="0.001",version="1"} %(quick)s
modserve_request_durations{model="a",seconds="0.02",version="1"} %(slow)s
modserve_request_longest_seconds{model="a",version="1"} 0.02
modserve_model_state{model="a",state="READY",version="1"} 1.0
modserve_model_state{model="not loaded",state="UNKNOWN",version=""} 1.0
modserve_requests_in_flight{model="a"} 5.0
modserve_connections{protocol="http"} 2.0
modserve_connections{protocol="grpc"} 1.0
modserve_ready 1.0
process_resident_memory_bytes 1.048576e+08
"""


def page(requests: float, inferences: float, executions: float, us: float, quick: float) -> str:
    counts = {"requests": requests, "inferences": inferences, "executions": executions, "us": us}
    counts |= {"queue": 0.75 * us, "infer": 0.125 * us}
    return PAGE % {**counts, "quick": quick, "slow": requests - quick}


def test_samples() -> None:
    text = '# TYPE a counter\na{x="1, \\"2\\"}",y="\\\\"} 3\nb 4.5e3\nnothing\nc{} NaN\nd{} x\n'
    read = list(samples(text))
    assert read[:2] == [("a", {"x": '1, "2"}', "y": "\\"}, 3.0), ("b", {}, 4500.0)]
    assert read[2][0] == "c"
    assert math.isnan(read[2][2])
    assert len(read) == 3


def test_what_a_page_tells() -> None:
    snapshot = from_metrics(page(10, 30, 5, 2e6, 9), 3.0)
    counts = snapshot.models["a", "1"]
    assert (counts.requests, counts.failures, counts.inferences, counts.executions) == (10, 3, 30, 5)
    assert (counts.seconds, counts.queue, counts.infer, counts.output) == (2, 1.5, 0.25, 0)
    assert (counts.waiting, counts.state) == (4, "READY")
    assert (counts.durations.total, counts.durations.longer(2e6), counts.durations.longest) == (10, 1, 20_000_000)
    assert (snapshot.in_flight, snapshot.connections, snapshot.memory, snapshot.ready) == (5, 3, 100 << 20, True)
    assert list(snapshot.models) == [("a", "1")]


def test_rates_and_recent_times() -> None:
    first = from_metrics(page(10, 30, 5, 2e6, 0), 0.0)
    second = from_metrics(page(20, 50, 10, 2.1e6, 10), 2.0)
    third = from_metrics(page(40, 70, 20, 2.3e6, 30), 4.0)
    [row] = rows([first, second, third])
    assert row.mean == pytest.approx(0.3 / 30)
    shares = [75, 0, 12, 0]
    assert row == TopRow("a", "1", "READY", 10.0, 4, 40 / 15, row.mean, row.p50, row.p99, shares, 0, 3, row.advice)
    assert row.advice.startswith("75 % of the time is spent in the queue: ")
    assert "'modserve tune a'" in row.advice
    assert [row.p50, row.p99] == pytest.approx([0.001, 0.001], rel=0.01)
    [alone] = rows([first])
    assert (alone.per_second, alone.batch, alone.p50) == (-1, -1, -1)


def test_a_model_that_was_loaded_again_begins_anew() -> None:
    [row] = rows([from_metrics(page(100, 100, 100, 1e6, 100), 0.0), from_metrics(page(10, 20, 10, 1e6, 10), 1.0)])
    assert (row.per_second, row.batch) == (10, 2)
    assert row.mean == pytest.approx(0.1)


def test_the_busiest_model_comes_first() -> None:
    used = {("a", "1"): VersionUsage(1), ("b", "1"): VersionUsage(5), ("c", "1"): VersionUsage(1)}
    shown = rows([from_statistics({}, 0.0), from_statistics(used, 1.0)])
    assert [row.model for row in shown] == ["b", "a", "c"]
    assert (shown[0].waiting, shown[0].p99, shown[0].shares, shown[0].advice) == (-1, -1, (), "")


def test_advice_is_on_the_slowest_model() -> None:
    quick, slow = (VersionUsage(count, total_ns=100, queue_ns=queue) for count, queue in ((9, 90), (1, 60)))
    shown = rows([from_statistics({}, 0.0), from_statistics({("a", "1"): quick, ("b", "1"): slow}, 1.0)])
    assert [row.shares for row in shown] == [[90, 0, 0, 0], [60, 0, 0, 0]]
    frame = top_frame.Frame("http://host", TopSnapshot(0.0), shown, [], "")
    assert top_frame.advice_line(frame).startswith("b: 60 % of the time is spent in the queue: ")
    assert top_frame.advice_line(replace(frame, rows=[])) == ""


# Where snapshots come from


class Server(SimpleNamespace):
    """As much of `RemoteServer` as a source uses."""

    def page(self, path: str) -> str:
        return str(self._outcome())

    def call(self, operation: Operation, *_: object) -> Any:
        self._outcome()
        if operation is INDEX:
            if self.restricted:
                raise RefusedError("restricted")
            return [{"name": "a", "version": "1", "state": "READY"}, {"name": "b"}]
        return {"ready": True} if operation is HEALTH else {"model_stats": [{"name": "a", "version": "1"}]}

    def _outcome(self) -> Any:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def close(self) -> None:
        pass


def source(
    metrics: "str | Exception", server: "str | Exception" = "", url: str = "", *, restricted: bool = False
) -> SnapshotSource:
    made = SnapshotSource(Destination(address("http://host:1")), url, lambda: 7.0)
    made._metrics = cast(RemoteServer, Server(outcome=metrics, url="http://host:8002"))
    made._server = cast(RemoteServer, Server(outcome=server, restricted=restricted))
    return made


def test_the_metrics_page_is_read() -> None:
    made = source(page(1, 1, 1, 1, 1))
    assert (made.read().at, made.remark) == (7.0, "")


def test_an_admin_port_has_its_own_page() -> None:
    made = source(UnreachableError("refused"), page(1, 1, 1, 1, 1))
    assert (made.read().at, made.remark) == (7.0, "")


@pytest.mark.parametrize("metrics", [UnreachableError("refused"), RefusedError("404"), "another page"])
def test_statistics_stand_in_for_metrics(metrics: "str | Exception") -> None:
    made = source(metrics)
    snapshot = made.read()
    assert (list(snapshot.models), snapshot.ready) == ([("a", "1")], True)
    assert made.remark.startswith("queue, p50 and p99 are missing: ")
    assert made.remark.endswith("; --metrics-url names the metrics port")
    assert made.read().ready


@pytest.mark.parametrize(("restricted", "state"), [(False, "READY"), (True, "")])
def test_the_index_has_the_states_without_metrics(restricted: bool, state: str) -> None:
    models = source(UnreachableError("refused"), restricted=restricted).read().models
    assert {key: each.state for key, each in models.items()} == {("a", "1"): state}


def test_nobody_there() -> None:
    with pytest.raises(UnreachableError, match="at all"):
        source(UnreachableError("refused"), UnreachableError("not at all")).read()
    with pytest.raises(UnreachableError, match="refused"):
        source(UnreachableError("refused"), url="http://metrics:1").read()


# Frames


class Prepared:
    url = "http://host"
    remark = ""

    def __init__(self, *outcomes: "TopSnapshot | Exception") -> None:
        self._outcomes = list(outcomes)

    def read(self) -> TopSnapshot:
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def frames(*outcomes: "TopSnapshot | Exception", most: int) -> list[top_frame.Frame]:
    waits: list[float] = []
    made = list(top.Frames(cast(SnapshotSource, Prepared(*outcomes)), 0.5, most, waits.append))
    assert waits == [0.5] * most
    return made


def snapshots(*times: float) -> Sequence[TopSnapshot]:
    return [from_metrics(page(10 * at, 10 * at, 5 * at, 1e4 * at, 10 * at), at) for at in times]


def test_a_frame_for_each_interval() -> None:
    one, two = frames(*snapshots(1, 2, 3), most=2)
    assert (one.rows[0].per_second, two.rows[0].per_second, list(two.history)) == (10, 10, [10, 10])


def test_a_server_that_is_away_for_a_while() -> None:
    first, second = snapshots(1, 3)
    away, back = frames(first, UnreachableError("nobody there"), second, most=2)
    assert (away.remark, away.rows) == ("nobody there", [])
    assert (back.remark, back.rows[0].per_second) == ("", 10)


def test_old_readings_do_not_count() -> None:
    *_, last = frames(*snapshots(*range(30)), most=29)
    assert last.rows[0].p99 > 0
    quiet = [from_metrics(page(count, count, 5, 1e4, count), at) for count, at in ((10, 0.0), (20, 1.0), (20, 11.0))]
    busy, last = frames(*quiet, most=2)
    assert busy.rows[0].p99 > 0
    assert last.rows[0].p99 == -1


def test_lines() -> None:
    [frame] = frames(*snapshots(1, 2), most=1)
    frame = replace(frame, remark="a remark")
    stamp, remark, head, rule, row, advice, empty = top_frame.text_lines(frame)
    assert stamp.endswith(" http://host, ready, 10.0 requests/s, 5 in flight, 3 connections, 100 MiB resident")
    assert remark == "a remark"
    assert head.split() == " ".join(top_frame.HEAD).split()
    assert set(rule) == {"-", " "}
    assert row.split() == ["a", "1", "READY", "10.0", "4", "2.0", *["1", "ms"] * 3, "75/0/12/0", "0", "3"]
    assert advice.startswith("a: 75 % of the time is spent in the queue: ")
    assert empty == ""


def test_the_live_view() -> None:
    [frame] = frames(*snapshots(1, 2), most=1)
    frame = replace(frame, remark="a remark")
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    view.show([frame], console)
    text = cast(io.StringIO, console.file).getvalue()
    for part in (
        "http://host, ready",
        "requests/s, at most 10",
        "a remark",
        "READY",
        "1 ms",
        "75/0/12/0",
        "a: 75 % of",
        "Ctrl-C to quit",
    ):
        assert part in text


@pytest.mark.parametrize(("values", "text"), [([], ""), ([0, 0], "  "), ([0, 4, 8], " ▄█")])
def test_bars(values: list[float], text: str) -> None:
    assert view.bars(values) == text


def test_a_count_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert terminal.run("top", ["--count", "-1"]) == 2
    assert "option '--count': expected a number of 0 or more, got: -1" in capsys.readouterr().err


@pytest.mark.parametrize(("phase", "word"), [(0, "not ready"), (1, "draining"), (3, "stopping"), (4, "drained")])
def test_a_server_on_its_way_out(phase: int, word: str) -> None:
    [frame] = frames(*snapshots(1, 2), most=1)
    drained = from_metrics(f"modserve_ready 0\nmodserve_drain_phase {phase}\n", 2.0)
    assert top_frame.summary(replace(frame, snapshot=drained)).startswith(f"http://host, {word}, ")
