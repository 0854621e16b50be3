"""The search space of a model, and how a point changes the configuration.

The search for the next point: one dimension after the other, in both directions, as long as it gets better.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from google.protobuf import text_format

from modserve.config import MEASURED
from modserve.pb import inference as pb

Value: TypeAlias = int | str
Point: TypeAlias = Mapping[str, Value]
"""A choice: a value for each dimension."""

DELAY, BATCH, INSTANCES, THREADS, ENGINE = "delay_us", "max_batch", "instances", "threads", "engine"
OFF = -1
"""The delay without dynamic batching."""
AS_IT_IS = 0
"""The threads where the configuration does not say them."""
_DELAYS = (OFF, 0, 100, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)
_OF_GOAL = 0.5
"""A delay is at most such a part of the goal."""
_THREAD_PARAMETERS = {
    "onnxruntime": "intra_op_thread_count",
    "openvino": "INFERENCE_NUM_THREADS",
    "pytorch": "INTRA_OP_THREAD_COUNT",
}


class SearchLimits(NamedTuple):
    """Limits of a search."""

    cores: int
    goal_ms: float
    rows: int = 1
    """Rows of a request; every batch must have room for them."""
    max_batch: int = 0
    """The largest max_batch_size to try; 0: the present one."""
    engines: bool = False
    """True if `auto` may choose another engine."""


def why_not(config: pb.ModelConfig) -> str:
    """Return why a model cannot be tuned; empty if it can."""
    if config.HasField("ensemble_scheduling"):
        return "it is an ensemble, which has nothing to tune: tune its models"
    if config.HasField("sequence_batching"):
        return "it uses sequences, which stay on one instance whatever the queue settings"
    if config.model_transaction_policy.decoupled:
        return "it is decoupled: requests have any number of responses, so latency says little"
    return ""


def space(config: pb.ModelConfig, backend: str, limits: SearchLimits) -> tuple[dict[str, Sequence[Value]], Point]:
    """Return the dimensions with their values in order, and the present point. `backend` runs the model now."""
    dimensions: dict[str, Sequence[Value]] = {}
    present: dict[str, Value] = {}

    def add(name: str, now: Value, values: Sequence[Value]) -> None:
        present[name] = now
        dimensions[name] = values

    if config.max_batch_size > 0:
        batching = config.dynamic_batching if config.HasField("dynamic_batching") else None
        delay = OFF if batching is None else batching.max_queue_delay_microseconds
        longest = limits.goal_ms * 1000 * _OF_GOAL
        add(DELAY, delay, _order_values(delay, (each for each in _DELAYS if each <= longest)))
        most = max(config.max_batch_size, limits.max_batch)
        sizes = (1 << power for power in range(most.bit_length()) if limits.rows <= 1 << power <= most)
        add(BATCH, config.max_batch_size, _order_values(config.max_batch_size, (*sizes, most)))
    groups = config.instance_group
    if len(groups) <= 1:
        count = (groups[0].count if groups else 0) or 1
        add(INSTANCES, count, _order_values(count, _powers(2 * limits.cores)))
    if parameter := _THREAD_PARAMETERS.get(backend):
        text = config.parameters[parameter].string_value if parameter in config.parameters else ""
        threads = int(text) if text.isdigit() else AS_IT_IS
        add(THREADS, threads, _order_values(threads, (AS_IT_IS, *_powers(limits.cores))))
    if limits.engines and backend in MEASURED:
        add(ENGINE, backend, (backend, "auto"))
    return dimensions, present


def _powers(most: int) -> list[int]:
    """Return powers of two, and the number itself."""
    return sorted({1 << power for power in range(most.bit_length()) if 1 << power <= most} | {most})


def _order_values(now: int, values: Iterable[int]) -> Sequence[Value]:
    return sorted({now, *values})


def apply(config: pb.ModelConfig, point: Point, present: Point, backend: str) -> pb.ModelConfig:
    """Return the configuration with the differences from the present point; all other fields stay as written."""
    made = pb.ModelConfig()
    made.CopyFrom(config)
    changed = {name: value for name, value in point.items() if value != present[name]}
    if BATCH in changed:
        made.max_batch_size = int(changed[BATCH])
        if made.HasField("dynamic_batching"):
            sizes = [size for size in made.dynamic_batching.preferred_batch_size if size <= made.max_batch_size]
            del made.dynamic_batching.preferred_batch_size[:]
            made.dynamic_batching.preferred_batch_size.extend(sizes)
    if changed.get(DELAY) == OFF:
        made.ClearField("dynamic_batching")
    elif DELAY in changed:
        made.dynamic_batching.max_queue_delay_microseconds = int(changed[DELAY])
    if INSTANCES in changed:
        if not made.instance_group:
            made.instance_group.add()
        made.instance_group[0].count = int(changed[INSTANCES])
    if ENGINE in changed:
        made.ClearField("platform")
        made.backend = str(changed[ENGINE])
    elif THREADS in changed:
        parameter = _THREAD_PARAMETERS[backend]
        if changed[THREADS] == AS_IT_IS:
            del made.parameters[parameter]
        else:
            made.parameters[parameter].string_value = str(changed[THREADS])
    return made


def text(config: pb.ModelConfig, remarks: Sequence[str]) -> str:
    """Return a config.pbtxt, with remarks above it."""
    body = text_format.MessageToString(config, as_utf8=True)
    return "".join(f"# {line}\n" for line in remarks) + ("\n" if remarks else "") + body


_SHOWN: Mapping[str, Callable[[Value], str]] = {
    DELAY: lambda value: "no dynamic batching" if value == OFF else f"delay {value} µs",
    BATCH: lambda value: f"max_batch_size {value}",
    INSTANCES: lambda value: f"{value} instance{'' if value == 1 else 's'}",
    THREADS: lambda value: "default threads" if value == AS_IT_IS else f"{value} thread{'' if value == 1 else 's'}",
    ENGINE: lambda value: f"engine {value}",
}


def describe(point: Point, names: Sequence[str] = ()) -> str:
    """Describe a point in words; `names` picks dimensions."""
    return ", ".join(_SHOWN[name](value) for name, value in point.items() if not names or name in names)


def changes(point: Point, present: Point) -> list[str]:
    """Return the differences from the present point, in words."""
    return [
        f"{_SHOWN[name](value)} (was: {_SHOWN[name](present[name])})"
        for name, value in point.items()
        if value != present[name]
    ]


class CoordinateSearch:
    """Search without server or clock: `next` returns a point, `record` takes its score, the higher the better.

    From the best point so far, it goes along each dimension upwards until the score is no better, then downwards, and
    through all dimensions again until none has anything better. No point is tried twice. A point counts as better
    if its score is `least_gain` above the best one, so that it does not follow noise.
    """

    def __init__(
        self, dimensions: Mapping[str, Sequence[Value]], start: Point, score: float, least_gain: float = 0.03
    ) -> None:
        self._dimensions = dimensions
        self._least_gain = least_gain
        self.best: Point = dict(start)
        self.score = score
        self._seen = {_key(start)}
        self._better = False
        """True if the last point was better."""
        self._points = self._all()

    @property
    def bar(self) -> float:
        """The score that the next point has to exceed."""
        return self.score * (1 + self._least_gain)

    def next(self) -> Point | None:
        """Return the next point; None when the search is over."""
        return next(self._points, None)

    def record(self, point: Point, score: float) -> None:
        self._better = score > self.bar or (self.score <= 0 < score)
        if self._better:
            self.best, self.score = dict(point), score

    def _all(self) -> Iterator[Point]:
        while True:
            before = self.best
            for name in self._dimensions:
                yield from self._along(name, 1)
                yield from self._along(name, -1)
            if self.best == before:
                return

    def _along(self, name: str, step: int) -> Iterator[Point]:
        values = self._dimensions[name]
        index = values.index(self.best[name]) + step
        while 0 <= index < len(values):
            point = {**self.best, name: values[index]}
            if _key(point) in self._seen:
                return
            self._seen.add(_key(point))
            self._better = False
            yield point
            if not self._better:
                return
            index += step


def _key(point: Point) -> tuple[tuple[str, Value], ...]:
    return tuple(sorted(point.items()))
