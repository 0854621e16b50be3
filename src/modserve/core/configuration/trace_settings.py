"""Selection and content of traces (protocol: trace extension)."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias


class TraceLevel(enum.Flag):
    """Content of a trace; the names are the protocol's."""

    OFF = 0
    TIMESTAMPS = 1
    TENSORS = 2
    """Inputs and outputs, with all their elements."""

    @property
    def names(self) -> list[str]:
        """The levels it is made of, as the protocol lists them."""
        return [level.name or "" for level in TraceLevel if level in self] or ["OFF"]


@dataclass(frozen=True, slots=True)
class SpanSettings:
    """Export of traces to an OpenTelemetry collector; the names are Triton's, except for `protocol`.

    `url` and `protocol` (``http/protobuf`` or ``grpc``) are empty to use the environment's value, or the default.
    `resource` has attributes that describe this server. `bsp_schedule_delay` is in milliseconds.
    """

    url: str = ""
    protocol: str = ""
    resource: tuple[tuple[str, str], ...] = ()
    bsp_max_queue_size: int = 2048
    bsp_schedule_delay: int = 5000
    bsp_max_export_batch_size: int = 512


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """Sampling of requests, and destination of traces.

    Every `rate`th request is traced until `count` traces have been made; -1 does not limit them. `file` is a path,
    empty for none. With a `log_frequency` of n, every n traces get a file of their own, `file` with ``.0``, ``.1``, …
    With `spans`, traces go to a collector instead, and requests traced by their clients are traced as well.
    """

    level: TraceLevel = TraceLevel.OFF
    rate: int = 1000
    count: int = -1
    log_frequency: int = 0
    file: str = ""
    spans: SpanSettings | None = None

    @property
    def mode(self) -> str:
        """The protocol's name of the trace mode."""
        return TRITON if self.spans is None else OPENTELEMETRY


TRITON = "triton"
OPENTELEMETRY = "opentelemetry"

TraceChange: TypeAlias = Mapping[str, TraceLevel | int | None]
"""New values of fields of `TraceSettings`; None goes back to the value that holds where nothing is set."""
