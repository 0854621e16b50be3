"""Configuration of a model as frozen values: the fields that modserve uses. `config/` makes them."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ..files.checksums import Checksum
from ..residency import NO_RULES, ResidencyRules
from ..tensors.dtypes import Datatype
from ..tensors.tensor import Shape
from ..version import VersionPolicy
from .ensemble_config import EnsembleConfig
from .merging import BatchInput, Padding
from .routing_config import Routing
from .sequence_config import SequenceBatching
from .text_settings import NO_TEXT_SETTINGS, TextSettings
from .warm_up_config import WarmUp


class InstanceKind(enum.Enum):
    AUTO = "KIND_AUTO"
    CPU = "KIND_CPU"
    GPU = "KIND_GPU"
    MODEL = "KIND_MODEL"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output of a model. `dims` leave out the batch dimension; -1 stands for any size.

    `reshape` is the shape the model itself sees in place of `dims`, None where it is the same. `ragged`: the model gets
    the elements of all requests in one dimension, so that their shapes may differ.
    """

    name: str
    datatype: Datatype
    dims: Shape
    reshape: Shape | None = None
    optional: bool = False
    label_filename: str = ""
    ragged: bool = False


@dataclass(frozen=True, slots=True)
class Resource:
    """Amount of a resource of the server, or of the instance's device, that each execution needs."""

    name: str
    count: int
    is_global: bool = False


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """Group of `count` instances of one kind; for KIND_GPU that many on each of `gpus`."""

    name: str
    kind: InstanceKind
    count: int
    gpus: tuple[int, ...] = ()
    resources: tuple[Resource, ...] = ()
    """Needs of each execution, under the rate limiter."""
    priority: int = 1
    """Priority under the rate limiter: an instance of 2 gets half as many turns as one of 1."""


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """Limits of the number of waiting requests of a level and of their waiting time."""

    max_queue_size: int = 0
    """Requests that may wait; 0 = no limit."""
    default_timeout_ns: int = 0
    """Maximum waiting time of a request; 0 = unlimited."""
    delay: bool = False
    """True to move a request that waited too long behind the others of its level, instead of refusing it."""
    allow_timeout_override: bool = False
    """Requests may shorten `default_timeout_ns` by their ``timeout`` parameter."""

    def timeout_ns(self, asked_ns: int) -> int:
        """Return the maximum wait of a request with `asked_ns` as its ``timeout`` parameter; 0 = unlimited, for both.

        Follows Triton (core, PolicyQueue::Enqueue), but the request's own time-out also applies if the policy has none.
        """
        default_ns = self.default_timeout_ns
        if not default_ns:
            return asked_ns
        return min(asked_ns, default_ns) if asked_ns and self.allow_timeout_override else default_ns


@dataclass(frozen=True, slots=True)
class Admission:
    """Rules for refusing requests before they queue."""

    by_deadline: bool = False
    """Refuse requests that are likely to miss their deadline."""
    latency_goal_ns: int = 0
    """Refuse requests that are likely to take longer than this; 0 = no goal."""
    too_many: bool = False
    """Overload is the client's fault (HTTP 429, RESOURCE_EXHAUSTED), not the server's (503, UNAVAILABLE)."""


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    """Settings of the dynamic batcher. Sizes are sums of the requests' batch sizes; times are in nanoseconds."""

    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_delay_ns: int = 0
    preserve_ordering: bool = False
    """Responses leave in the order of the requests."""
    priority_levels: int = 0
    """1 is the most urgent, 0 = there are no priorities."""
    default_priority_level: int = 0
    default_policy: QueuePolicy = QueuePolicy()
    level_policies: Mapping[int, QueuePolicy] = field(default_factory=dict)
    """Policies of the levels that differ from the default."""
    look_ahead: int = 1024
    """Maximum number of arrivals after a batch's first request for a request to join it, past those of other shapes."""
    ageing_ns: int = 0
    """A request counts as a level more urgent for each such time it has waited; 0 = never."""
    separate_by: tuple[str, ...] = ()
    """Request parameters: only requests with equal values of them share a batch."""
    batch_sizes: tuple[int, ...] = ()
    """The only sizes that are executed, ascending: rows are added up to the next one. Empty: any size."""
    max_batch_elements: int = 0
    """Maximum elements of a batch: with padding rows times length, of ragged inputs their sum; 0 = no limit."""

    measured_sizes: bool = False
    """True to stop the growth of batches at the size above which, by measured run times, they gain nothing. For models
    without padding; False: batches are as large as they can be."""

    def policy(self, level: int) -> QueuePolicy:
        return self.level_policies.get(level, self.default_policy)


@dataclass(frozen=True, slots=True)
class Accelerator:
    """An engine inside the engine, of ``optimization.execution_accelerators``; its parameters are its own."""

    name: str
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Limits of a model's requests in flight and execution time, and its cache sharing between tenants."""

    max_accepted_requests: int = 0
    """Requests that are accepted and not settled; 0: any number."""
    execution_timeout_ns: int | None = None
    """Time-out of an execution; 0: none. None: the server's option applies."""
    share_cache: bool = False
    """A tenant may get the kept response to the request of another one."""


@dataclass(frozen=True)
class ModelConfig:
    """A complete, normalised and validated configuration of a model."""

    name: str
    backend: str
    platform: str = ""
    max_batch_size: int = 0
    """0: the model's tensors have no batch dimension. Otherwise the first dimension is one, and this its cap."""
    default_batch_size: bool = False
    """Neither the configuration nor the model says `max_batch_size`: it is the backend's default."""
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    version_policy: VersionPolicy = field(default_factory=lambda: VersionPolicy(latest=1))
    instance_groups: tuple[InstanceGroup, ...] = ()
    dynamic_batching: DynamicBatching | None = None
    admission: Admission = Admission()
    sequence_batching: SequenceBatching | None = None
    padding: Padding | None = None
    text: TextSettings = NO_TEXT_SETTINGS
    """Text handling, for the front ends that take texts."""
    batch_inputs: tuple[BatchInput, ...] = ()
    batch_outputs: Mapping[str, str] = field(default_factory=dict)
    """Outputs to divide among the requests by the shapes of an input, which is the value."""
    ensemble: EnsembleConfig | None = None
    """The steps, for a model that is made of others and has no engine of its own."""
    default_model_filename: str = ""
    decoupled: bool = False
    residency: ResidencyRules = NO_RULES
    """Rules for loading the model into memory and evicting it."""
    limits: ModelLimits = ModelLimits()
    cached: bool = False
    """True to cache its responses, if the server has a response cache."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    metric_tags: Mapping[str, str] = field(default_factory=dict)
    histogram_buckets: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Upper bounds of the model's histograms that have not the usual ones, by family."""
    warm_ups: tuple[WarmUp, ...] = ()
    """Samples that each instance runs before it takes requests: ``model_warmup``."""
    routing: Routing | None = None
    """Division of requests without a version between the model's versions, unless a client sets it."""
    runtime: str = ""
    """Implementation of the backend that runs the model, where there are several."""
    graph_optimization_level: int | None = None
    """``optimization.graph.level``; None when the configuration does not set it."""
    gpu_accelerators: tuple[Accelerator, ...] = ()
    """Accelerators of the instances on GPUs, in order of preference."""
    cpu_accelerators: tuple[Accelerator, ...] = ()
    """Accelerators of all instances, after those for GPUs."""
    checksums: tuple[Checksum, ...] = ()
    """Digests that files must have, by the ``checksum`` agent of ``model_repository_agents``."""
    operation_libraries: tuple[str, ...] = ()
    """Shared libraries with operators of the model's own: ``model_operations.op_library_filename``."""

    @cached_property
    def inputs_by_name(self) -> dict[str, TensorSpec]:
        return {spec.name: spec for spec in self.inputs}

    @cached_property
    def outputs_by_name(self) -> dict[str, TensorSpec]:
        return {spec.name: spec for spec in self.outputs}

    @cached_property
    def output_names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self.outputs)

    @cached_property
    def optional_inputs(self) -> frozenset[str]:
        return frozenset(spec.name for spec in self.inputs if spec.optional)

    @cached_property
    def required_input_count(self) -> int:
        return sum(not spec.optional for spec in self.inputs)

    @cached_property
    def state_outputs(self) -> tuple[str, ...]:
        """The outputs that are kept for the next request of a sequence."""
        sequences = self.sequence_batching
        return () if sequences is None else tuple(name for name, _ in sequences.state_outputs)

    @cached_property
    def deviations(self) -> set[str]:
        """The outputs of which the log has said that they are not as configured: once is enough."""
        return set()

    @cached_property
    def batch_sizes(self) -> tuple[int, ...]:
        """The only sizes that are executed, ascending; empty: any size."""
        return () if self.dynamic_batching is None else self.dynamic_batching.batch_sizes

    @property
    def fills_up(self) -> bool:
        """True if batches may have padding elements, which belong to no request."""
        return self.padding is not None or bool(self.batch_sizes)

    @property
    def batching(self) -> bool:
        """True if the first dimension of every tensor is the batch dimension."""
        return self.max_batch_size > 0

    @property
    def served_platform(self) -> str:
        """The platform in model metadata: the legacy name if the configuration has one, else the backend."""
        return self.platform or self.backend

    def batch_size_remedy(self, size: str = "N") -> str:
        """Say how to allow batches of `size`, in a line after an error; empty unless `max_batch_size` is a default."""
        if not self.default_batch_size:
            return ""
        return (
            f"\n{self.max_batch_size} is the default of backend '{self.backend}': no configuration of model "
            f"'{self.name}' sets max_batch_size. Write max_batch_size: {size} into its config.pbtxt, or start the "
            f"server with --backend-config={self.backend},default-max-batch-size={size}"
        )

    def full_dims(self, spec: TensorSpec) -> Shape:
        """Return the dims that clients see: with -1 in front for the batch dimension of a batching model."""
        return (-1, *spec.dims) if self.batching else spec.dims


@dataclass(frozen=True, slots=True)
class DescribedTensor:
    """A tensor as the model file describes it: `shape` is complete, a batch dimension included; -1 = variable."""

    name: str
    datatype: Datatype
    shape: Shape
    optional: bool = False
    symbols: tuple[str, ...] = ()
    """The names that the file has for its variable dimensions, empty texts for others. Empty: it has none at all."""
    rank_known: bool = True
    """False: the file does not say how many dimensions there are, and `shape` is empty."""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """An engine's description of a model, to fill in what its configuration leaves out.

    None leaves the decision to the configuration and the tensors.
    """

    inputs: tuple[DescribedTensor, ...]
    outputs: tuple[DescribedTensor, ...]
    default_max_batch_size: int = 0
    """The max_batch_size to fill in if every tensor has a variable first dimension and the configuration says 0."""
    batching_obstacle: str = ""
    """Reason against batching rows of the model, although every first dimension is variable."""
    max_batch_size: int | None = None
    """The largest batch, if the model itself knows it; replaces a configured 0."""
    batch_dimension: bool = True
    """True if the shapes of a batching model include the batch dimension. False: it is added in front."""
    decoupled: bool | None = None
    """True if a request may have any number of responses."""
    dynamic_batching: bool | None = None
    """True to batch requests; None: if the model can batch."""
    cpu_instances: int = 0
    """The number of CPU instances unless configured; 0: the backend's default."""
    adds_tensors: bool = False
    """True to add inputs and outputs that the configuration does not list to the listed ones."""
    sequence_batching: Mapping[str, object] | None = None
    """``sequence_batching`` in the JSON form of a configuration, for a stateful model."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Parameters that the model's files have values for, unless the configuration has them itself."""
