"""How the benchmark of mixed loads chooses, counts and tabulates."""

import argparse
import io
import json
import time
from typing import Any

import pytest

import mix
import mix_server
from mix import Hold, Phase
from mix_clients import DISTURBANCES, check_length


def phase(name: str, times: list[float]) -> Phase:
    return Phase(name, (), dict.fromkeys(mix.WAYS, times), {way: [0.001] for way in mix.WAYS}, 8, [(10.0, 20.0)])


def hold(at: float, **other: Any) -> Hold:
    fields = {
        "ms": 9.0,
        "cpu_ms": 8.0,
        "process_cpu_ms": 8.5,
        "gc_ms": 0.0,
        "callback": "f",
        "place": "a",
        "others": "",
    }
    return Hold(at, **{**fields, **other})


def test_phases() -> None:
    names = [each.name for each in mix.phases([])]
    assert names == [mix.ALONE, mix.BUSY, *DISTURBANCES, mix.EVERYTHING]
    assert [each.name for each in mix.phases(["metrics"])] == [mix.ALONE, "metrics scrapes"]
    assert mix.phases(["all"])[1].disturbances == tuple(DISTURBANCES)


def test_percentiles_of_few_requests_are_left_out() -> None:
    assert mix.cells([0.001] * 999 + [0.05]) == "1.00, 1.00, -, 50.0"
    assert mix.cells([0.001] * 4995 + [0.05] * 5) == "1.00, 1.00, 50.00, 50.0"


def test_the_latencies() -> None:
    options = argparse.Namespace(rate=200.0, rounds=1, seconds=2.0)
    table = mix.latency_table([phase(mix.ALONE, [0.001] * 100), phase("x", [0.002] * 1000)], options)
    assert table[-2].startswith("| nothing | 1.00, -, -, 1.0 | 1.00, -, -, 1.0 |")
    assert table[-1] == "| x | 2.00, 2.00, -, 2.0 | 2.00, 2.00, -, 2.0 | 2.0 |"


def test_holds_by_phase_and_callback() -> None:
    holds = [
        hold(9.0),
        hold(15.0, cpu_ms=4.0, place="b"),
        hold(16.0, place="b"),
        hold(50.0),
        hold(12.0, cpu_ms=0.1, others="json.py:1"),
        hold(12.0, cpu_ms=0.1, process_cpu_ms=1.0, others="json.py:1"),
    ]
    table = mix.holds_table([phase("x", [])], holds)
    assert "| x | `f` | 3 | 8.0, 8.0 ms | 0.0 ms | b |" in table
    assert table[-1] == "| x | json.py:1 | 1 | 9.0, 9.0 ms |"


def test_responses_of_one_length() -> None:
    assert check_length(0, 7) == check_length(7, 7) == 7
    with pytest.raises(ValueError, match="a response of 8 bytes, the first had 7"):
        check_length(7, 8)


class Handle:
    def _callback(self) -> None:
        end = time.thread_time() + 0.004
        while time.thread_time() < end:
            pass


def test_a_long_callback_is_written_down() -> None:
    text = io.StringIO()
    holds = mix_server.Holds(text, limit_s=0.003)
    holds.timed(Handle(), lambda handle: handle._callback())
    line = json.loads(text.getvalue())
    assert line["callback"] == "Handle._callback"
    assert line["cpu_ms"] >= 3.9
    assert Hold(**line).ms >= line["cpu_ms"] - 0.1


def test_a_short_callback_is_not() -> None:
    text = io.StringIO()
    mix_server.Holds(text, limit_s=1000.0).timed(Handle(), lambda handle: None)
    assert text.getvalue() == ""
