"""Configuration of a model as frozen values, with the fields that modserve uses. `config/` creates them."""

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
    """An input or output of a model. `dims` exclude the batch dimension; -1 stands for any size.

    `reshape` is the shape that the model receives instead of `dims`, None if equal. With `ragged`, the model receives
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
    """Amount of a resource of the server, or of the instance's device, needed by each execution."""

    name: str
    count: int
    is_global: bool = False


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """Group of `count` instances of one kind; for KIND_GPU, `count` instances on each of `gpus`."""

    name: str
    kind: InstanceKind
    count: int
    gpus: tuple[int, ...] = ()
    resources: tuple[Resource, ...] = ()
    """Resources of each execution, under the rate limiter."""
    priority: int = 1
    """Priority under the rate limiter: an instance with 2 gets half as many turns as one with 1."""


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """Limits on the number and the waiting time of a level's waiting requests."""

    max_queue_size: int = 0
    """Maximum number of waiting requests; 0 = unlimited."""
    default_timeout_ns: int = 0
    """Maximum waiting time of a request; 0 = unlimited."""
    delay: bool = False
    """True to move an expired request behind the others of its level instead of refusing it."""
    allow_timeout_override: bool = False
    """True if requests may shorten `default_timeout_ns` with their ``timeout`` parameter."""

    def timeout_ns(self, asked_ns: int) -> int:
        """Return the maximum wait of a request with the ``timeout`` parameter `asked_ns`; 0 = unlimited, for both.

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
    """True to report overload as the client's fault (HTTP 429, RESOURCE_EXHAUSTED) instead of 503, UNAVAILABLE."""


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    """Settings of the dynamic batcher. Sizes are sums of the requests' batch sizes; times are in nanoseconds."""

    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_delay_ns: int = 0
    preserve_ordering: bool = False
    """True to send responses in the order of the requests."""
    priority_levels: int = 0
    """Number of levels, of which 1 is the most urgent; 0 = no priorities."""
    default_priority_level: int = 0
    default_policy: QueuePolicy = QueuePolicy()
    level_policies: Mapping[int, QueuePolicy] = field(default_factory=dict)
    """Policies of the levels that differ from the default."""
    look_ahead: int = 1024
    """Maximum number of requests, of any shape, between a batch's first request and one that joins it."""
    ageing_ns: int = 0
    """Waiting time that makes a request one level more urgent; 0 = never."""
    separate_by: tuple[str, ...] = ()
    """Names of request parameters. Only requests with equal values share a batch."""
    batch_sizes: tuple[int, ...] = ()
    """Allowed sizes of executions, ascending. Batches are padded with rows to the next size. Empty: any size."""
    max_batch_elements: int = 0
    """Maximum elements of a batch: rows times length with padding, the sum for ragged inputs; 0 = unlimited."""

    measured_sizes: bool = False
    """True to limit batches to the size above which measured run times show no gain, for models without padding. False:
    batches are as large as possible."""

    def policy(self, level: int) -> QueuePolicy:
        return self.level_policies.get(level, self.default_policy)


@dataclass(frozen=True, slots=True)
class Accelerator:
    """An accelerator of the engine from ``optimization.execution_accelerators``, with its own parameters."""

    name: str
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Limits of a model's requests in flight and execution time, and its cache sharing between tenants."""

    max_accepted_requests: int = 0
    """Maximum number of requests in flight; 0: unlimited."""
    execution_timeout_ns: int | None = None
    """Time-out of an execution; 0: none. None: the server's option applies."""
    share_cache: bool = False
    """True if tenants share cached responses."""


@dataclass(frozen=True)
class ModelConfig:
    """A complete, normalised and validated configuration of a model."""

    name: str
    backend: str
    platform: str = ""
    max_batch_size: int = 0
    """Maximum size of the first dimension, the batch dimension; 0: tensors have no batch dimension."""
    default_batch_size: bool = False
    """True if `max_batch_size` is the backend's default, as neither the configuration nor the model sets it."""
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    version_policy: VersionPolicy = field(default_factory=lambda: VersionPolicy(latest=1))
    instance_groups: tuple[InstanceGroup, ...] = ()
    dynamic_batching: DynamicBatching | None = None
    admission: Admission = Admission()
    sequence_batching: SequenceBatching | None = None
    padding: Padding | None = None
    text: TextSettings = NO_TEXT_SETTINGS
    """Settings for front ends that accept texts."""
    batch_inputs: tuple[BatchInput, ...] = ()
    batch_outputs: Mapping[str, str] = field(default_factory=dict)
    """Output → source input. Its shapes divide the output among the requests."""
    ensemble: EnsembleConfig | None = None
    """Steps of an ensemble, which has no engine of its own."""
    default_model_filename: str = ""
    decoupled: bool = False
    residency: ResidencyRules = NO_RULES
    """Rules for loading the model into memory and evicting it."""
    limits: ModelLimits = ModelLimits()
    cached: bool = False
    """True to cache responses, if the server has a response cache."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    metric_tags: Mapping[str, str] = field(default_factory=dict)
    histogram_buckets: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Upper bounds of histograms by family, where they differ from the default."""
    warm_ups: tuple[WarmUp, ...] = ()
    """Samples of ``model_warmup``, which each instance runs before it takes requests."""
    routing: Routing | None = None
    """Division of requests without a version between the model's versions, unless a client sets it."""
    runtime: str = ""
    """Implementation of the backend, if it has several."""
    graph_optimization_level: int | None = None
    """``optimization.graph.level``; None if not configured."""
    gpu_accelerators: tuple[Accelerator, ...] = ()
    """Accelerators for instances on GPUs, in order of preference."""
    cpu_accelerators: tuple[Accelerator, ...] = ()
    """Accelerators for all instances, tried after `gpu_accelerators`."""
    checksums: tuple[Checksum, ...] = ()
    """Expected digests of files, from the ``checksum`` agent of ``model_repository_agents``."""
    operation_libraries: tuple[str, ...] = ()
    """Shared libraries with custom operators: ``model_operations.op_library_filename``."""

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
        """Outputs that become states for the next request of a sequence."""
        sequences = self.sequence_batching
        return () if sequences is None else tuple(name for name, _ in sequences.state_outputs)

    @cached_property
    def deviations(self) -> set[str]:
        """Outputs already reported in the log as different from the configuration."""
        return set()

    @cached_property
    def batch_sizes(self) -> tuple[int, ...]:
        """Allowed sizes of executions, ascending; empty: any size."""
        return () if self.dynamic_batching is None else self.dynamic_batching.batch_sizes

    @property
    def fills_up(self) -> bool:
        """True if batches may contain padding elements."""
        return self.padding is not None or bool(self.batch_sizes)

    @property
    def batching(self) -> bool:
        """True if the first dimension of every tensor is the batch dimension."""
        return self.max_batch_size > 0

    @property
    def served_platform(self) -> str:
        """Platform in model metadata: the configured legacy name, else the backend."""
        return self.platform or self.backend

    def batch_size_remedy(self, size: str = "N") -> str:
        """Return a hint for errors on allowing batches of `size`; empty unless `max_batch_size` is a default."""
        if not self.default_batch_size:
            return ""
        return (
            f"\n{self.max_batch_size} is the default of backend '{self.backend}': no configuration of model "
            f"'{self.name}' sets max_batch_size. Write max_batch_size: {size} into its config.pbtxt, or start the "
            f"server with --backend-config={self.backend},default-max-batch-size={size}"
        )

    def full_dims(self, spec: TensorSpec) -> Shape:
        """Return the dims as shown to clients, with a leading -1 for the batch dimension of a batching model."""
        return (-1, *spec.dims) if self.batching else spec.dims


@dataclass(frozen=True, slots=True)
class DescribedTensor:
    """A tensor as described by the model file. `shape` includes the batch dimension; -1 = variable."""

    name: str
    datatype: Datatype
    shape: Shape
    optional: bool = False
    symbols: tuple[str, ...] = ()
    """Names of the variable dimensions, with empty texts for other dimensions; empty if the file has no names."""
    rank_known: bool = True
    """False if the file does not determine the number of dimensions; `shape` is empty then."""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """An engine's description of a model, which completes its configuration.

    None leaves the decision to the configuration and the tensors.
    """

    inputs: tuple[DescribedTensor, ...]
    outputs: tuple[DescribedTensor, ...]
    default_max_batch_size: int = 0
    """Value of max_batch_size if every tensor has a variable first dimension and the configuration has 0."""
    batching_obstacle: str = ""
    """Reason not to batch although every first dimension is variable."""
    max_batch_size: int | None = None
    """Largest batch, if the model itself determines it; replaces a configured 0."""
    batch_dimension: bool = True
    """True if the shapes of a batching model include the batch dimension. False: it is prepended."""
    decoupled: bool | None = None
    """True if a request may have any number of responses."""
    dynamic_batching: bool | None = None
    """True to enable dynamic batching; None: if the model can batch."""
    cpu_instances: int = 0
    """Default number of CPU instances; 0: the backend's default."""
    adds_tensors: bool = False
    """True to add inputs and outputs that the configuration does not list."""
    sequence_batching: Mapping[str, object] | None = None
    """``sequence_batching`` in the JSON form of a configuration, for a stateful model."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Default parameters from the model's files."""
