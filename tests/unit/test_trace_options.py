"""What the trace options make of a server's trace settings."""

import re

import pytest

from modserve.core.configuration.trace_settings import SpanSettings, TraceLevel, TraceSettings
from modserve.core.pip_command import pip_install
from modserve.process.app import InferenceServer
from modserve.settings import OptionError, Settings, from_command_line, telemetry

BOTH = TraceLevel.TIMESTAMPS | TraceLevel.TENSORS


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], TraceSettings()),
        (["--trace-level=OFF"], TraceSettings()),
        (["--trace-config=level=TIMESTAMPS", "--trace-config=level=TENSORS"], TraceSettings(BOTH)),
        (["--trace-config=level=TIMESTAMPS", "--trace-level=off"], TraceSettings()),
        (["--trace-level=tensors", "--trace-config=rate=2"], TraceSettings(TraceLevel.TENSORS, 2)),
        (
            [
                "--trace-config=triton,file=t.json",
                "--trace-config=triton,log-frequency=3",
                "--trace-config=count=4",
                "--trace-config=level=true",
            ],
            TraceSettings(TraceLevel.TIMESTAMPS, 1000, 4, 3, "t.json"),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_settings_of_the_start(options: list[str], expected: TraceSettings) -> None:
    assert from_command_line(["--model-repository=models", *options], {}).settings.trace == expected


SPANS = ["--trace-config=mode=OpenTelemetry"]


@pytest.mark.parametrize(
    ("options", "environment", "expected"),
    [
        ([], {}, SpanSettings()),
        (
            [
                "--trace-config=opentelemetry,url=localhost:4318/v1/traces",
                "--trace-config=opentelemetry,resource=service.name=a=b",
                "--trace-opentelemetry=resource=stage=test",
                "--trace-config=OPENTELEMETRY,bsp_max_queue_size=4",
                "--trace-config=opentelemetry,protocol=grpc",
            ],
            {},
            SpanSettings(
                "localhost:4318/v1/traces", "grpc", (("service.name", "a=b"), ("stage", "test")), bsp_max_queue_size=4
            ),
        ),
        (
            ["--trace-config=opentelemetry,bsp_schedule_delay=7"],
            {"OTEL_BSP_SCHEDULE_DELAY": "8", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "9"},
            SpanSettings(bsp_schedule_delay=7, bsp_max_export_batch_size=9),
        ),
    ],
)
def test_settings_of_spans(
    monkeypatch: pytest.MonkeyPatch, options: list[str], environment: dict[str, str], expected: SpanSettings
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    trace = from_command_line(["--model-repository=models", *SPANS, *options], {}).settings.trace
    assert (trace.mode, trace.spans) == ("opentelemetry", expected)


def test_the_keyword_takes_a_mapping() -> None:
    spans = {"url": "http://a", "resource": {"a": "b", "c": "d"}, "bsp_max_queue_size": 3}
    settings = Settings(model_repository="models", trace_mode="opentelemetry", trace_opentelemetry=spans)
    assert settings.trace.spans == SpanSettings("http://a", "", (("a", "b"), ("c", "d")), bsp_max_queue_size=3)


@pytest.mark.parametrize(
    ("options", "environment", "text"),
    [
        (["url"], {}, "--trace-config option format is"),
        (["bsp_max_queue_size=0"], {}, "bsp_max_queue_size is '0', expected a number of 1 to 2147483647"),
        (["bsp_schedule_delay=1.5"], {}, "bsp_schedule_delay is '1.5', expected a number of 1 to 2147483647"),
        (["resource=a"], {}, "expected 'resource=<key>=<value>', got: resource=a"),
        (["protocol=udp"], {}, "protocol is 'udp', expected http/protobuf or grpc"),
        ([], {"OTEL_BSP_MAX_QUEUE_SIZE": "x"}, "OTEL_BSP_MAX_QUEUE_SIZE is 'x', expected a number"),
        ([], {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "OTEL_EXPORTER_OTLP_PROTOCOL is 'http/json', expected http"),
    ],
)
def test_mistakes(monkeypatch: pytest.MonkeyPatch, options: list[str], environment: dict[str, str], text: str) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    words = ["--model-repository=models", *SPANS, *(f"--trace-config=opentelemetry,{each}" for each in options)]
    with pytest.raises(OptionError, match=re.escape(text)):
        from_command_line(words, {})


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "find_spec", lambda name: None)
    with pytest.raises(OptionError, match=re.escape(f"install it with: {pip_install('otel')}")):
        from_command_line(["--model-repository=models", *SPANS], {})
    assert from_command_line(["--model-repository=models"], {}).settings.trace.spans is None


def test_what_has_no_effect() -> None:
    words = ["--model-repository=models", "--trace-level=TENSORS", "--trace-file=a"]
    warnings = from_command_line([*words, *SPANS], {}).warnings
    assert [warning.partition(" ")[0] for warning in warnings] == ["--trace-file", "--trace-level=TENSORS"]
    (warning,) = from_command_line([*words, "--trace-opentelemetry=url=a"], {}).warnings
    assert warning == "--trace-config opentelemetry,… has no effect without --trace-config mode=opentelemetry"


async def test_a_server_has_them() -> None:
    server = InferenceServer(Settings(model_repository="models", trace_rate=7))
    assert server.tracer.settings() == TraceSettings(rate=7)
    await server.shut_down()
