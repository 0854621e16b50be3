"""Every row of the table of settings that are not acted on."""

import pytest
from config_build import ONE_EACH, finish, problems

from modserve.config.features.unsupported import SETTINGS, Unsupported

# Unsupported → a configuration where it matters, and the path it is reported under.
FAILING = {
    "input.is_shape_tensor": ("input { is_shape_tensor: true }", "input[0].is_shape_tensor"),
    "output.is_shape_tensor": ("output { is_shape_tensor: true }", "output[0].is_shape_tensor"),
    "input.is_non_linear_format_io": ("input { is_non_linear_format_io: true }", "input[0].is_non_linear_format_io"),
    "output.is_non_linear_format_io": ("output { is_non_linear_format_io: true }", "output[0].is_non_linear_format_io"),
    "model_repository_agents": ("model_repository_agents { agents { name: 'a' } }", "model_repository_agents"),
    "model_operations": ("model_operations { op_library_filename: 'a.so' }", "model_operations"),
    "instance_group.passive": ("instance_group [ { }, { passive: true } ]", "instance_group[1].passive"),
    "ensemble_scheduling.step.model_namespace": (
        "platform: 'ensemble' ensemble_scheduling { step { model_name: 'a' model_version: -1 model_namespace: 'b' "
        "input_map { key: 'x' value: 'IN' } output_map { key: 'y' value: 'OUT' } } }",
        "ensemble_scheduling.step[0].model_namespace",
    ),
}
WARNING = {
    "runtime": ("runtime: 'r'", "runtime"),
    "cc_model_filenames": ("cc_model_filenames { key: '7.0' value: 'm' }", "cc_model_filenames"),
    "optimization.priority": ("optimization { priority: PRIORITY_MAX }", "optimization.priority"),
    "optimization.cuda": ("optimization { cuda { graphs: true } }", "optimization.cuda"),
    "optimization.execution_accelerators": (
        "optimization { execution_accelerators { } }",
        "optimization.execution_accelerators",
    ),
    "optimization.input_pinned_memory.enable": (
        "optimization { input_pinned_memory { enable: false } }",
        "optimization.input_pinned_memory.enable",
    ),
    "optimization.output_pinned_memory.enable": (
        "optimization { output_pinned_memory { } }",
        "optimization.output_pinned_memory.enable",
    ),
    "optimization.gather_kernel_buffer_threshold": (
        "optimization { gather_kernel_buffer_threshold: 4 }",
        "optimization.gather_kernel_buffer_threshold",
    ),
    "optimization.eager_batching": ("optimization { eager_batching: true }", "optimization.eager_batching"),
    "instance_group.secondary_devices": (
        "instance_group { secondary_devices { } }",
        "instance_group[0].secondary_devices",
    ),
    "instance_group.host_policy": ("instance_group { host_policy: 'p' }", "instance_group[0].host_policy"),
    "sequence_batching.state.use_same_buffer_for_input_output": (
        "sequence_batching { state { input_name: 'S' output_name: 'T' data_type: TYPE_FP32 dims: 1 "
        "use_same_buffer_for_input_output: true } }",
        "sequence_batching.state[0].use_same_buffer_for_input_output",
    ),
}


def test_every_row_is_tested() -> None:
    assert [setting.path for setting in SETTINGS] == [*FAILING, *WARNING]
    assert [setting.path for setting in SETTINGS if setting.fails] == [*FAILING]


@pytest.mark.parametrize(("path", "case"), FAILING.items())
def test_fails(path: str, case: tuple[str, str]) -> None:
    text, shown = case
    found = [
        problem for problem in problems(f"{text}\nmax_batch_size: 8", backend="identity") if "not supported" in problem
    ]

    (why,) = [setting.why for setting in SETTINGS if setting.path == path]
    assert [problem.split(": ", 1)[1] for problem in found] == [
        f"'{shown}' is not supported by this version of modserve: {why}"
    ]
    assert found[0].startswith("1:")


@pytest.mark.parametrize(("path", "case"), WARNING.items())
def test_warns(path: str, case: tuple[str, str]) -> None:
    text, shown = case

    (why,) = [setting.why for setting in SETTINGS if setting.path == path]
    (warning,) = finish(text + ONE_EACH, backend="identity").warnings
    assert warning.startswith("repository/foo/config.pbtxt:1:")
    assert warning.endswith(f": '{shown}' is ignored by this version of modserve: {why}")


@pytest.mark.parametrize("setting", [each for each in SETTINGS if each.supported_by], ids=lambda each: each.path)
def test_a_backend_may_act_on_it(setting: Unsupported) -> None:
    text, _ = {**FAILING, **WARNING}[setting.path]
    for backend in setting.supported_by:
        assert finish(text + ONE_EACH, backend=backend).warnings == []


@pytest.mark.parametrize(
    "text",
    [
        "response_cache { enable: false }",
        "model_transaction_policy { decoupled: true }",
        "optimization { input_pinned_memory { enable: true } output_pinned_memory { enable: true } }",
        "optimization { graph { level: 1 } }",
        "max_batch_size: 1 dynamic_batching { default_queue_policy { timeout_action: REJECT max_queue_size: 8 "
        "default_timeout_microseconds: 5 allow_timeout_override: true } }",
    ],
)
def test_harmless(text: str) -> None:
    assert finish(text + ONE_EACH).warnings == []


def test_a_runtime_is_for_pytorch() -> None:
    built = finish("backend: 'pytorch' runtime: 'model.py' " + ONE_EACH)
    assert built.config.runtime == "model.py"
    assert not [warning for warning in built.warnings if "runtime" in warning]
