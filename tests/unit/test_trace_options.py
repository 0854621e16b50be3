"""What the trace options make of a server's trace settings."""

import pytest

from modserve.app import InferenceServer
from modserve.core.trace_settings import TraceLevel, TraceSettings
from modserve.settings import Settings, from_command_line

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


async def test_a_server_has_them() -> None:
    server = InferenceServer(Settings(model_repository="models", trace_rate=7))
    assert server.tracer.settings() == TraceSettings(rate=7)
    await server.shut_down()
