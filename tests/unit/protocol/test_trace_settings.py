"""Trace settings on both wires: what is said of them, and what may be asked."""

import json
from typing import Any

import pytest

from modserve.core.configuration.trace_settings import SpanSettings, TraceLevel, TraceSettings
from modserve.core.errors import Code, ModserveError
from modserve.pb import inference as pb
from modserve.protocol.control import trace_settings

BOTH = TraceLevel.TIMESTAMPS | TraceLevel.TENSORS


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            TraceSettings(),
            b'{"trace_level":["OFF"],"trace_rate":"1000","trace_count":"-1","log_frequency":"0","trace_file":"",'
            b'"trace_mode":"triton"}',
        ),
        (
            TraceSettings(BOTH, 1, 5, 2, "t.json"),
            b'{"trace_level":["TIMESTAMPS","TENSORS"],"trace_rate":"1","trace_count":"5","log_frequency":"2",'
            b'"trace_file":"t.json","trace_mode":"triton"}',
        ),
    ],
    ids=["default", "all"],
)
def test_what_is_said(settings: TraceSettings, expected: bytes) -> None:
    told = trace_settings.json(settings)
    assert json.dumps(told, separators=(",", ":")).encode() == expected
    message = trace_settings.message(settings)
    assert {name: list(value.value) for name, value in message.settings.items()} == {
        name: value if isinstance(value, list) else [value] for name, value in told.items()
    }


def by_message(given: dict[str, list[str]]) -> Any:
    value = pb.TraceSettingRequest.SettingValue
    request = pb.TraceSettingRequest(settings={name: value(value=values) for name, values in given.items()})
    return trace_settings.change_by_message(request.settings)


@pytest.mark.parametrize(
    ("given", "change"),
    [
        ({}, {}),
        ({"foo": "x"}, {}),
        ({"trace_mode": "triton", "trace_rate": "2"}, {"rate": 2}),
        ({"trace_mode": None}, {}),
        ({"trace_level": ["OFF"]}, {"level": TraceLevel.OFF}),
        ({"trace_level": ["TENSORS", "TIMESTAMPS", "TENSORS"]}, {"level": BOTH}),
        ({"trace_level": None}, {"level": None}),
        ({"trace_rate": "1"}, {"rate": 1}),
        ({"trace_rate": "4294967295"}, {"rate": 2**32 - 1}),
        ({"trace_rate": " +7"}, {"rate": 7}),
        ({"trace_count": "-1"}, {"count": -1}),
        ({"trace_count": "2147483647", "log_frequency": "0"}, {"count": 2**31 - 1, "log_frequency": 0}),
        (
            {"trace_rate": None, "trace_count": None, "log_frequency": None},
            dict.fromkeys(("rate", "count", "log_frequency")),
        ),
    ],
    ids=str,
)
def test_what_may_be_asked(given: dict[str, Any], change: dict[str, Any]) -> None:
    assert trace_settings.change_by_json(json.dumps(given).encode()) == change
    values = {
        name: [] if value is None else value if isinstance(value, list) else [value] for name, value in given.items()
    }
    assert by_message(values) == change


def test_where_the_wires_differ() -> None:
    assert trace_settings.change_by_json(b"") == {}
    assert trace_settings.change_by_json(b'{"trace_level":[]}') == {}
    assert by_message({"trace_level": []}) == {"level": None}


FILE = "trace file location can not be updated through network protocol"
MODE = "trace mode can not be updated through network protocol, got: "
RANGE = "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: "
COUNT = "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: "


@pytest.mark.parametrize(
    ("name", "values", "text"),
    [
        ("trace_file", ["x"], FILE),
        ("trace_mode", ["opentelemetry"], MODE + "opentelemetry, expected 'triton', which it is"),
        ("trace_mode", [""], MODE + ", expected 'triton', which it is"),
        ("trace_level", ["OFF", "TIMESTAMPS"], "Expect only one trace level 'OFF' is specified"),
        (
            "trace_level",
            ["TIMESTAMPS", "FOO"],
            "Unable to parse 'trace_level', got: FOO, expected OFF, TIMESTAMPS or TENSORS",
        ),
        ("trace_rate", ["x"], "Unable to parse 'trace_rate', got: x"),
        ("trace_rate", [""], "Unable to parse 'trace_rate', got: "),
        ("trace_rate", ["1.5"], "Unable to parse 'trace_rate', got: 1.5"),
        ("trace_rate", ["-1"], RANGE + "-1"),
        ("trace_rate", ["4294967296"], RANGE + "4294967296"),
        ("trace_count", ["x"], "Unable to parse 'trace_count', got: x"),
        ("trace_count", ["2147483648"], COUNT + "2147483648"),
        ("trace_count", ["-2147483649"], COUNT + "-2147483649"),
        ("log_frequency", ["x"], "Unable to parse 'log_frequency', got: x"),
        (
            "log_frequency",
            ["-1"],
            "Unable to parse 'log_frequency', value is out of range [ 0, 4294967295 ], got: -1",
        ),
    ],
)
def test_what_is_refused(name: str, values: list[str], text: str) -> None:
    code = Code.UNSUPPORTED if name in ("trace_file", "trace_mode") else Code.INVALID_ARG
    body = json.dumps({name: values if name == "trace_level" else values[0]}).encode()
    for refused in (lambda: trace_settings.change_by_json(body), lambda: by_message({name: values})):
        with pytest.raises(ModserveError) as raised:
            refused()
        assert (raised.value.code, raised.value.message) == (code, text)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"trace_file":null}', FILE),
        (b'{"trace_count":"-2"}', "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
        (b'{"trace_level":"TIMESTAMPS"}', "attempt to access JSON non-array as array"),
        (b'{"trace_level":[1]}', "attempt to access JSON non-string as string"),
        (b'{"trace_mode":["triton"]}', "attempt to access JSON non-string as string"),
        (b'{"trace_rate":1}', "attempt to access JSON non-string as string"),
        (b"[]", "attempt to access JSON non-object as object"),
    ],
)
def test_json_that_is_refused(body: bytes, text: str) -> None:
    with pytest.raises(ModserveError) as raised:
        trace_settings.change_by_json(body)
    assert raised.value.message == text


@pytest.mark.parametrize(
    ("name", "values", "text"),
    [
        ("trace_file", [], FILE),
        ("trace_count", ["-2"], "Unable to parse 'trace_count'. Expecting value >= -1, got: -2"),
        ("trace_rate", ["1", "2"], "expect only 1 value for 'trace_rate'"),
        ("log_frequency", ["1", "2"], "expect only 1 value for 'log_frequency'"),
    ],
)
def test_messages_that_are_refused(name: str, values: list[str], text: str) -> None:
    with pytest.raises(ModserveError) as raised:
        by_message({name: values})
    assert raised.value.message == text


def test_the_settings_of_spans() -> None:
    """As Triton: without those of files, and with their own by name."""
    spans = SpanSettings("http://user:secret@host:4318/v1/traces", "grpc", (("a", "b"), ("c", "d")), 7, 8, 6)
    shown = trace_settings.json(TraceSettings(TraceLevel.TIMESTAMPS, 0, spans=spans))
    assert shown == {
        "trace_level": ["TIMESTAMPS"],
        "trace_rate": "0",
        "trace_count": "-1",
        "trace_mode": "opentelemetry",
        "url": "http://…@host:4318/v1/traces",
        "protocol": "grpc",
        "resource": "a=b,c=d",
        "bsp_max_queue_size": "7",
        "bsp_schedule_delay": "8",
        "bsp_max_export_batch_size": "6",
    }
    assert "url" not in trace_settings.json(TraceSettings(spans=SpanSettings()))
    assert trace_settings.change_by_json(b'{"trace_mode":"opentelemetry","trace_rate":"0"}', "opentelemetry") == {
        "rate": 0
    }
    with pytest.raises(ModserveError, match="got: triton, expected 'opentelemetry', which it is"):
        trace_settings.change_by_json(b'{"trace_mode":"triton"}', "opentelemetry")
