"""Parameters of Python models, and the options of their backend."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from modserve.backends.python import options
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import Code, ModserveError


def config(**parameters: str) -> ModelConfig:
    return ModelConfig(name="m", backend="python", parameters=parameters)


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(ModserveError) as caught:
        call()
    assert caught.value.code is Code.INVALID_ARG
    return caught.value.message


def test_defaults() -> None:
    assert options.model_options(config()) == options.ModelOptions("process", None)
    assert options.backend_options({}) == options.BackendOptions(False, None, sys.executable, False, 30.0, 30.0)


def test_what_a_model_says() -> None:
    said = config(EXECUTION_ENV_PATH=" /envs/a.tar.gz", FORCE_CPU_ONLY_INPUT_TENSORS="no", its_own="1")
    assert options.model_options(said) == options.ModelOptions("process", "/envs/a.tar.gz")
    assert options.model_options(config(EXECUTION_MODE="Thread", EXECUTION_ENV_PATH="")) == options.ModelOptions(
        "thread"
    )


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (
            {"EXECUTION_MODE": "fork"},
            "model 'm': parameter 'EXECUTION_MODE' is 'fork', expected one of: process, thread, inline",
        ),
        (
            {"FORCE_CPU_ONLY_INPUT_TENSORS": "true"},
            "model 'm': parameter 'FORCE_CPU_ONLY_INPUT_TENSORS' is 'true', expected one of: yes, no",
        ),
        (
            {"EXECUTION_ENV_PATH": "a\0b"},
            "model 'm': parameter 'EXECUTION_ENV_PATH' is 'a\0b', expected a conda-pack archive or an environment's "
            "directory",
        ),
        (
            {"EXECUTION_MODE": "inline", "EXECUTION_ENV_PATH": "/envs/a"},
            "model 'm': parameters 'EXECUTION_MODE' is 'inline' and 'EXECUTION_ENV_PATH' is '/envs/a'; a model "
            "that runs on the event loop of the server uses the server's interpreter; remove one of the two",
        ),
        (
            {"EXECUTION_MODE": "thread", "EXECUTION_ENV_PATH": "/envs/a"},
            "model 'm': parameters 'EXECUTION_MODE' is 'thread' and 'EXECUTION_ENV_PATH' is '/envs/a'; a model "
            "that runs in a thread of the server uses the server's interpreter; remove one of the two",
        ),
    ],
)
def test_what_is_wrong_with_a_model(parameters: Mapping[str, str], text: str) -> None:
    assert refusal(lambda: options.model_options(config(**parameters))) == text


def test_what_the_server_says(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    values = {
        "install-requirements": "true",
        "environment-directory": "/var/cache/environments",
        "python": str(python),
        "full-errors": "1",
        "start-timeout-seconds": "2.5",
        "stop-timeout-seconds": "5",
        "shm-default-byte-size": "nonsense",
    }
    expected = options.BackendOptions(True, "/var/cache/environments", str(python), True, 2.5, 5.0)
    assert options.backend_options(values) == expected


def test_tritons_name_of_the_start_time_out() -> None:
    assert options.backend_options({"stub-timeout-seconds": "60"}).start_timeout_s == 60
    both = {"stub-timeout-seconds": "60", "start-timeout-seconds": "70"}
    assert options.backend_options(both).start_timeout_s == 70


@pytest.mark.parametrize(
    ("key", "value", "right"),
    [
        ("install-requirements", "maybe", "true or false"),
        ("python", "/no/such/python", "the path or name of a Python interpreter"),
        ("python", "", "the path or name of a Python interpreter"),
        ("stub-timeout-seconds", "0", "seconds, more than 0 and at most 86400"),
        ("start-timeout-seconds", "nan", "seconds, more than 0 and at most 86400"),
        ("stop-timeout-seconds", "soon", "seconds, more than 0 and at most 86400"),
    ],
)
def test_what_is_wrong_with_an_option(key: str, value: str, right: str) -> None:
    text = refusal(lambda: options.backend_options({key: value}))
    assert text == f"backend option '{key}' is '{value}', expected {right}"


def test_options_of_triton_that_have_no_effect_say_why() -> None:
    without = {key for key, why in options.BACKEND_OPTIONS.items() if why}
    assert without == {
        "shm-default-byte-size",
        "shm-growth-byte-size",
        "shm-region-prefix-name",
        "shm_message_queue_size",
        "thread-pool-size",
    }


def test_an_execution_may_have_a_limit() -> None:
    assert options.model_options(config(EXECUTION_TIMEOUT_SECONDS="2.5")).execution_timeout_s == 2.5
    assert refusal(lambda: options.model_options(config(EXECUTION_TIMEOUT_SECONDS="0"))) == (
        "model 'm': parameter 'EXECUTION_TIMEOUT_SECONDS' is '0', expected seconds, more than 0 and at most 86400"
    )


@pytest.mark.parametrize("mode", ["thread", "inline"])
def test_only_a_process_can_be_ended(mode: str) -> None:
    refused = refusal(lambda: options.model_options(config(EXECUTION_TIMEOUT_SECONDS="1", EXECUTION_MODE=mode)))
    assert refused == (
        f"model 'm': parameter 'EXECUTION_TIMEOUT_SECONDS' needs a process that it can end, but 'EXECUTION_MODE' is "
        f"'{mode}'; remove one of the two"
    )


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("execution_env_path", "EXECUTION_ENV_PATH"),
        ("EXECUTION-ENV-PATH", "EXECUTION_ENV_PATH"),
        ("EXECUTION_ENVPATH", "EXECUTION_ENV_PATH"),
        ("EXECUTION_MODUS", "EXECUTION_MODE"),
        ("FORCE_CPU_ONLY_INPUT_TENSOR", "FORCE_CPU_ONLY_INPUT_TENSORS"),
    ],
)
def test_misspelt_parameters(key: str, near: str) -> None:
    assert options.warnings(config(**{key: "x"})) == [
        f"model 'm': parameter '{key}' has no effect unless the model itself reads it; did you mean '{near}'?"
    ]


def test_a_model_has_parameters_of_its_own() -> None:
    assert options.warnings(config(tokenizer="bert", MODE="a", path="b", execution="c", EXECUTION_MODE="process")) == []


def test_tensors_on_devices() -> None:
    assert options.warnings(config(FORCE_CPU_ONLY_INPUT_TENSORS="yes")) == []
    assert options.warnings(config(FORCE_CPU_ONLY_INPUT_TENSORS="no")) == [
        "model 'm': parameter 'FORCE_CPU_ONLY_INPUT_TENSORS' is 'no', which has no effect: all input tensors are in "
        "host memory"
    ]
