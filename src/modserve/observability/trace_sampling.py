"""Sampling of traces: settings of one model or all models, counts, and destination of the traces."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from modserve.core.configuration.trace_settings import TraceChange, TraceLevel, TraceSettings
from modserve.core.requests.trace_context import SpanContext

from .trace_file import TraceOutput


class TraceSampler:
    """Settings in use, with their counts and the destination of their traces.

    `own`: fields set at this level, by name; the others come from the level below. A change creates a new object, so
    that traces under way keep theirs.
    """

    def __init__(self, settings: TraceSettings, own: Mapping[str, Any], output: TraceOutput) -> None:
        self._settings = settings
        self._samples = 0
        self._collected = 0
        self._in_file = 0
        self._able = bool(settings.level) and settings.rate > 0 and not problem(settings)
        self._continues = settings.spans is not None and bool(settings.level)
        self.own = own
        self.output = output
        self.level = settings.level if settings.spans is None else TraceLevel.TIMESTAMPS
        self.remaining = settings.count
        self.open = 0
        """Traces under way."""
        self.retired = False

    @property
    def current(self) -> TraceSettings:
        return replace(self._settings, count=self.remaining)

    @property
    def live(self) -> bool:
        return self._able and self.remaining != 0

    @property
    def on(self) -> bool:
        """True if a request may be sampled, by these settings or by its client."""
        return self.live or self._continues

    def hit(self, parent: SpanContext | None = None) -> bool:
        """Count a request; return whether it is sampled. A client's trace decides for its requests."""
        if parent is not None and not parent.sampled:
            return False
        sampled = self._continues and parent is not None
        if self._count():
            sampled = True
        self.open += sampled
        return sampled

    def _count(self) -> bool:
        """Count a request; as in Triton, also if it is traced anyway."""
        if not self.live:
            return False
        self._samples += 1
        if self._samples % self._settings.rate:
            return False
        if self.remaining > 0:
            self.remaining -= 1
        return True

    def collect(self) -> bool:
        """Count a complete trace; return whether it completes its file."""
        self.open -= 1
        self._collected += 1
        self._in_file += 1
        frequency = self._settings.log_frequency
        complete = (self.remaining == 0 and self._collected == self._samples) or 0 < frequency <= self._in_file
        if complete:
            self._in_file = 0
        return complete


def problem(settings: TraceSettings) -> str:
    """Return the reason why enabled traces are impossible with these settings; empty if they are possible."""
    if not settings.level or settings.spans is not None:  # with a rate of 0, spans are only for clients' traces
        return ""
    if not settings.rate:
        return "sample rate must be non-zero"
    return "" if settings.file else "trace file name is not given"


def apply_change(
    defaults: TraceSettings, setting: TraceSampler | None, change: TraceChange
) -> tuple[TraceSettings, Mapping[str, Any]]:
    """Return the settings after a change, and their own fields; the other fields come from `defaults`."""
    own: dict[str, Any] = {} if setting is None else {name: getattr(setting.current, name) for name in setting.own}
    for name, value in change.items():
        if value is None:
            own.pop(name, None)
        else:
            own[name] = value
    return replace(defaults, **own), own
