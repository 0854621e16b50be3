"""The models of the product test: one or two for each feature, and what may change about them."""

from dataclasses import dataclass
from typing import Final

from modserve.core.tenants import Tenant

TENSORS: Final = """
input [ { name: "IN" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT64 dims: [ 1 ] } ]
"""
PADDED_TENSORS: Final = """
input [ { name: "IN" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] } ]
parameters { key: "padding.axis.IN" value { string_value: "0" } }
parameters { key: "padding.unpad.OUT" value { string_value: "0" } }
"""
TEXT_TENSORS: Final = (
    PADDED_TENSORS.replace('"IN"', '"input_ids"').replace(".IN", ".input_ids")
    + """
parameters { key: "text.task" value { string_value: "classification" } }
parameters { key: "text.activation" value { string_value: "none" } }
parameters { key: "text.output" value { string_value: "OUT" } }
"""
)
"""Its scores are its tokens, as they came back."""
WARM_UP: Final = """
model_warmup { name: "first" batch_size: 2
  inputs { key: "IN" value { data_type: TYPE_INT64 dims: 1 zero_data: true } } }
"""
GENERATION: Final = 10**9
"""Difference that a response shows for each time that the model's files have changed."""
CHAT_TENSORS: Final = TENSORS.replace("TYPE_INT64", "TYPE_STRING")


@dataclass(frozen=True)
class Variation:
    """What a change in place may change. The defaults say nothing of a field."""

    count: int = 1
    batching: bool = True
    delay_ms: int = 0
    preferred: int = 0
    queue_size: int = 0
    timeout_ms: int = 0
    """Of the queue."""
    delays_late: bool = False
    """What has waited too long runs last, and is not refused."""
    ordered: bool = False
    levels: int = 0
    cached: bool = False
    resources: int = 1
    """Of the rate limiter, of each instance, in models that need any; 0: no longer any."""
    groups: int = 1
    """Of instances; each has one at least."""
    warm_up: bool = False
    """Its instances run something before they take requests."""
    label: str = ""
    """The beginning of the groups' names, if they have any."""

    def text(self, group: str = "") -> str:
        return "".join(
            (
                f"instance_group [ {', '.join(self._groups(group))} ]\n",
                self._batching() if self.batching else "",
                "response_cache { enable: true }\n" if self.cached else "",
                WARM_UP if self.warm_up else "",
            )
        )

    def _groups(self, group: str) -> list[str]:
        number = min(self.groups, self.count)
        counts = [self.count - number + 1] + [1] * (number - 1)
        names = [f'name: "{self.label}{index}" ' if self.label else "" for index in range(number)]
        more = group.format(resources=self.resources) if self.resources else ""
        return [f"{{ {name}count: {count} kind: KIND_CPU {more} }}" for name, count in zip(names, counts, strict=True)]

    def _batching(self) -> str:
        policy = []
        if self.queue_size:
            policy.append(f"max_queue_size: {self.queue_size}")
        if self.timeout_ms:
            policy.append(f"default_timeout_microseconds: {self.timeout_ms * 1000}")
            policy.append("allow_timeout_override: true")
        if self.delays_late:
            policy.append("timeout_action: DELAY")
        fields = [f"max_queue_delay_microseconds: {self.delay_ms * 1000}"]
        if self.preferred:
            fields.append(f"preferred_batch_size: [ {self.preferred} ]")
        if policy:
            fields.append(f"default_queue_policy {{ {' '.join(policy)} }}")
        if self.ordered:
            fields.append("preserve_ordering: true")
        if self.levels:
            fields.append(f"priority_levels: {self.levels} default_priority_level: 1")
        return f"dynamic_batching {{ {' '.join(fields)} }}\n"


USUAL: Final = Variation()
CACHED: Final = Variation(cached=True)
BARE: Final = Variation(batching=False)


@dataclass(frozen=True)
class Kind:
    """One of the models: its configuration but for what varies."""

    head: str
    variation: Variation = USUAL
    varies: tuple[str, ...] = ()
    """The fields of a `Variation` that mean something for it."""
    group: str = ""
    """More for its instance group, with `resources` in braces."""
    versions: tuple[int, ...] = (1,)
    needs: tuple[str, ...] = ()
    """The models that it is made of, or calls."""
    sequences: bool = False
    decoupled: bool = False
    ensemble: bool = False
    padded: bool = False
    """Its requests may differ in length, and the server chooses by length which of them run together."""

    takes_texts: bool = False
    """Beside its tensors: it has a tokenizer."""

    chats: bool = False
    """Its tensors are texts, so that it generates text."""

    unasked: bool = False
    """Its engine describes it, and it batches though no configuration asks for that; its batches mix their requests."""

    @property
    def stamped(self) -> bool:
        """Its responses show which files of the model they come from."""
        return not (self.chats or self.takes_texts or self.needs)

    @property
    def input(self) -> str:
        return "input_ids" if self.takes_texts else "IN"

    def text(self, variation: Variation) -> str:
        if not self.ensemble:
            tensors = (
                ""
                if self.unasked
                else CHAT_TENSORS
                if self.chats
                else TEXT_TENSORS
                if self.takes_texts
                else PADDED_TENSORS
                if self.padded
                else TENSORS
            )
            return self.head + tensors + variation.text(self.group)
        return self.head + TENSORS + ("response_cache { enable: true }\n" if variation.cached else "")


QUEUE: Final = (
    "count",
    "delay_ms",
    "preferred",
    "queue_size",
    "timeout_ms",
    "delays_late",
    "ordered",
    "levels",
    "cached",
    "groups",
    "label",
    "warm_up",
)
INSTANCES: Final = ("count", "groups", "label", "warm_up")
BLOCKS: Final = 'backend: "blocking" max_batch_size: 4\n'
"""Its executions block a thread: that of the instance, or the event loop's."""
BATCHES: Final = 'backend: "puppet" max_batch_size: 4\n'
_SEQUENCES = "sequence_batching {{ max_sequence_idle_microseconds: 5000000 {strategy} }}\n"
_GREEDY = 'rate_limiter {{ resources [ {{ name: "R" count: {resources} }} ] priority: 1 }}'
_MODEST = 'rate_limiter {{ resources [ {{ name: "R" count: {resources} }} ] priority: 2 }}'
_STEP = """{{ model_name: "{model}" model_version: -1
  input_map {{ key: "IN" value: "{source}" }} output_map {{ key: "OUT" value: "{target}" }} }}"""
_CHAIN = (
    'platform: "ensemble" max_batch_size: 4 ensemble_scheduling { step [ '
    + _STEP.format(model="plain", source="IN", target="MIDDLE")
    + ", "
    + _STEP.format(model="cached", source="MIDDLE", target="OUT")
    + " ] }\n"
)
ROUTINGS: Final = (
    '{"labels": {"stable": 1, "canary": 2}, "split": {"stable": 1, "canary": 1}, '
    '"rollback": {"version": "canary", "error_share": 0.3, "last_requests": 4, "least_requests": 2}}',
    '{"split": {"1": 1, "2": 0}, "shadow": {"version": "2", "share": 1}}',
    '{"split": {"1": 0, "2": 1}, "sticky": "parameter:user"}',
)
ROLLBACKS: Final = tuple(
    f'{{"rolled_back": {{"{version}": {reason}}}}}' for version in (2, 1) for reason in ('"bad"', "null")
)
"""By hand: versions that are rolled back, or no longer."""
_ROUTED = (
    BATCHES
    + "version_policy { all {} }\n"
    + 'parameters { key: "routing" value { string_value: \''
    + ROUTINGS[0]
    + "' } }\n"
)

_LIMITS = """parameters { key: "limits.execution_timeout_ms" value { string_value: "1000" } }
parameters { key: "limits.max_accepted_requests" value { string_value: "5" } }
"""
TENANTS: Final = (
    None,
    Tenant("a"),
    Tenant("b", 2.0, requests_per_second=3, queue_size=2),
    Tenant("c", 0.3, concurrency=2, rows_per_second=5),
)
"""Who may send requests; the first one is nobody in particular."""

MODELS: Final[dict[str, Kind]] = {
    "plain": Kind(BATCHES, varies=QUEUE),
    "cached": Kind(BATCHES, CACHED, QUEUE),
    "padded": Kind(BATCHES, varies=QUEUE, padded=True),
    "text": Kind(BATCHES, varies=QUEUE[:-1], padded=True, takes_texts=True),
    "bare": Kind(BATCHES, BARE, (*INSTANCES, "cached")),
    "blocking": Kind(BLOCKS, varies=QUEUE),
    "blocking_sequences": Kind(BLOCKS + _SEQUENCES.format(strategy="direct {}"), BARE, INSTANCES, sequences=True),
    "direct": Kind(BATCHES + _SEQUENCES.format(strategy="direct {}"), BARE, INSTANCES, sequences=True),
    "oldest": Kind(
        BATCHES + _SEQUENCES.format(strategy="oldest { max_candidate_sequences: 2 }"),
        BARE,
        (*INSTANCES, "resources"),
        _MODEST,
        sequences=True,
    ),
    "stream": Kind(
        'backend: "requests" max_batch_size: 4 model_transaction_policy { decoupled: true }\n',
        varies=("count", "delay_ms", "queue_size", "timeout_ms"),
        decoupled=True,
    ),
    "chat": Kind(
        'backend: "requests" max_batch_size: 4 model_transaction_policy { decoupled: true }\n',
        varies=("count", "delay_ms", "queue_size", "timeout_ms"),
        decoupled=True,
        chats=True,
    ),
    "unasked": Kind('backend: "puppet"\n', varies=("count", "delay_ms", "queue_size", "timeout_ms"), unasked=True),
    "caller": Kind('backend: "calling" max_batch_size: 4\n', varies=QUEUE, needs=("plain",)),
    "greedy": Kind(BATCHES, Variation(resources=2), (*QUEUE, "resources"), _GREEDY),
    "modest": Kind(BATCHES, varies=(*QUEUE, "resources"), group=_MODEST),
    "chain": Kind(_CHAIN, BARE, ("cached",), needs=("plain", "cached"), ensemble=True),
    "hasty": Kind(BATCHES + _LIMITS, varies=QUEUE),
    "routed": Kind(_ROUTED, varies=("count", "delay_ms", "queue_size", "timeout_ms", "warm_up"), versions=(1, 2)),
}
