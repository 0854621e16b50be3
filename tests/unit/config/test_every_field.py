"""Every field of ModelConfig is acted on, or is said to have no effect: none is ignored in silence."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

import modserve
from modserve.config.features.unsupported import SETTINGS
from modserve.pb import inference as pb

SOURCE = Path(modserve.__file__).parent

ACTED_ON = re.findall(
    r"\S+",
    """
    name platform backend max_batch_size default_model_filename metric_tags parameters.string_value
    version_policy.latest.num_versions version_policy.all version_policy.specific.versions input.name
    input.data_type input.dims input.reshape.shape input.allow_ragged_batch input.optional output.name
    output.data_type output.dims output.reshape.shape output.label_filename batch_input.kind
    batch_input.target_name batch_input.data_type batch_input.source_input batch_output.kind
    batch_output.target_name batch_output.source_input optimization.graph.level
    dynamic_batching.preferred_batch_size dynamic_batching.max_queue_delay_microseconds
    dynamic_batching.preserve_ordering dynamic_batching.priority_levels
    dynamic_batching.default_priority_level dynamic_batching.default_queue_policy.timeout_action
    dynamic_batching.default_queue_policy.default_timeout_microseconds
    dynamic_batching.default_queue_policy.allow_timeout_override
    dynamic_batching.default_queue_policy.max_queue_size dynamic_batching.priority_queue_policy.timeout_action
    dynamic_batching.priority_queue_policy.default_timeout_microseconds
    dynamic_batching.priority_queue_policy.allow_timeout_override
    dynamic_batching.priority_queue_policy.max_queue_size
    sequence_batching.direct.max_queue_delay_microseconds sequence_batching.direct.minimum_slot_utilization
    sequence_batching.oldest.max_candidate_sequences sequence_batching.oldest.preferred_batch_size
    sequence_batching.oldest.max_queue_delay_microseconds sequence_batching.oldest.preserve_ordering
    sequence_batching.max_sequence_idle_microseconds sequence_batching.iterative_sequence
    sequence_batching.control_input.name sequence_batching.control_input.control.kind
    sequence_batching.control_input.control.int32_false_true
    sequence_batching.control_input.control.fp32_false_true
    sequence_batching.control_input.control.bool_false_true sequence_batching.control_input.control.data_type
    sequence_batching.state.input_name sequence_batching.state.output_name sequence_batching.state.data_type
    sequence_batching.state.dims sequence_batching.state.use_growable_memory
    sequence_batching.state.initial_state.data_type sequence_batching.state.initial_state.dims
    sequence_batching.state.initial_state.zero_data sequence_batching.state.initial_state.data_file
    ensemble_scheduling.step.model_name ensemble_scheduling.step.model_version
    ensemble_scheduling.step.input_map ensemble_scheduling.step.output_map
    ensemble_scheduling.max_inflight_requests instance_group.name instance_group.kind instance_group.count
    instance_group.gpus instance_group.rate_limiter.resources.name
    instance_group.rate_limiter.resources.global instance_group.rate_limiter.resources.count
    instance_group.rate_limiter.priority model_warmup.name model_warmup.batch_size model_warmup.count
    model_warmup.inputs.data_type model_warmup.inputs.dims model_warmup.inputs.zero_data
    model_warmup.inputs.random_data model_warmup.inputs.input_data_file model_transaction_policy.decoupled
    response_cache.enable
    model_metrics.metric_control.metric_identifier.family model_metrics.metric_control.histogram_options.buckets
    """,
)
CHECKED = {
    "input.format": "says how an image lies in memory, and needs three dimensions; only TensorRT does more with it",
    "instance_group.profile": "refused, but for TensorRT's models, which do not load",
}
FOR_PEOPLE = {"sequence_batching.state.initial_state.name": "a name that nothing refers to"}


def leaves(descriptor: Descriptor, path: str = "") -> Iterator[str]:
    """The paths of all fields that have a value of their own."""
    for field in descriptor.fields:
        here = f"{path}{field.name}"
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            inner = inner.fields_by_name["value"].message_type
        below = [] if inner is None else list(leaves(inner, f"{here}."))
        yield from below or [here]


LEAVES = list(leaves(pb.ModelConfig.DESCRIPTOR))


def covers(path: str, leaf: str) -> bool:
    return leaf == path or leaf.startswith(f"{path}.")


@pytest.mark.parametrize("leaf", LEAVES)
def test_a_field_is_in_one_table(leaf: str) -> None:
    tables = [leaf in ACTED_ON, leaf in CHECKED, leaf in FOR_PEOPLE]
    tables.append(any(covers(setting.path, leaf) for setting in SETTINGS))
    assert sum(tables) == 1, f"{leaf}: act on it, or say in config/features/unsupported.py why it has no effect"


def test_the_tables_have_fields_only() -> None:
    for path in (*ACTED_ON, *CHECKED, *FOR_PEOPLE, *(setting.path for setting in SETTINGS)):
        assert any(covers(path, leaf) for leaf in LEAVES), path


def test_what_is_acted_on_is_read_somewhere() -> None:
    text = "\n".join(
        path.read_text("utf-8") for folder in ("config", "core") for path in (SOURCE / folder).rglob("*.py")
    )
    for path in (*ACTED_ON, *CHECKED):
        assert path.rpartition(".")[2] in text, path


def test_each_reason_says_something() -> None:
    for setting in SETTINGS:
        assert len(setting.why.split()) >= 4
        assert not setting.why.endswith(".")


def test_the_fields_are_those_of_triton() -> None:
    """By number and name, so that none of a new version of the protocol is missed."""
    fields: list[FieldDescriptor] = list(pb.ModelConfig.DESCRIPTOR.fields)
    assert {field.number: field.name for field in fields} == {
        1: "name",
        2: "platform",
        3: "version_policy",
        4: "max_batch_size",
        5: "input",
        6: "output",
        7: "instance_group",
        8: "default_model_filename",
        9: "cc_model_filenames",
        10: "metric_tags",
        11: "dynamic_batching",
        12: "optimization",
        13: "sequence_batching",
        14: "parameters",
        15: "ensemble_scheduling",
        16: "model_warmup",
        17: "backend",
        18: "model_operations",
        19: "model_transaction_policy",
        20: "batch_input",
        21: "batch_output",
        23: "model_repository_agents",
        24: "response_cache",
        25: "runtime",
        26: "model_metrics",
    }
