"""The identity backend, and the parameters that make it useful in tests."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from modserve.backends import identity
from modserve.backends.api import ModelSource
from modserve.backends.identity import IdentityBackend, IdentityModel
from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.configuration.sequence_config import SequenceBatching, SequenceState
from modserve.core.errors import Code, ModserveError
from modserve.core.tensors import dtypes
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.tensor import Array
from modserve.testing import config, instance_spec

FP32, INT32 = dtypes.FP32, dtypes.INT32


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds it wanted to sleep, which it did not."""
    seconds: list[float] = []
    monkeypatch.setattr(identity, "time", SimpleNamespace(sleep=seconds.append))  # other threads sleep as ever
    return seconds


def specs(prefix: str, *datatypes: Datatype, **more: Any) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(f"{prefix}{index}", datatype, (2,), **more) for index, datatype in enumerate(datatypes))


def model(*datatypes: Datatype, **parameters: str) -> ModelConfig:
    chosen = datatypes or (INT32,)
    return config(inputs=specs("IN", *chosen), outputs=specs("OUT", *chosen), parameters=parameters)


def source(given: ModelConfig) -> ModelSource:
    return ModelSource(given, 1, Path("nowhere"), Path("nowhere"))


def execute(given: ModelConfig, inputs: dict[str, Array], *outputs: str, number: int = 0) -> dict[str, Array]:
    """Open the model, and run its instance of that number once."""
    opened = IdentityBackend().open(source(given))
    instance = opened.instance(instance_spec(given, index=number))
    found = dict(instance.execute(inputs, outputs))
    instance.close()
    opened.close()
    return found


@pytest.mark.parametrize("datatype", dtypes.ALL, ids=repr)
def test_output_i_is_input_i(datatype: Datatype) -> None:
    given = model(datatype, datatype)
    first, second = np.zeros((1, 2), datatype.numpy), np.ones((1, 2), datatype.numpy)
    found = execute(given, {"IN1": second, "IN0": first}, "OUT1", "OUT0")
    assert found["OUT0"] is first
    assert found["OUT1"] is second


def test_only_what_is_wanted_and_given() -> None:
    given = config(inputs=specs("IN", INT32, INT32, optional=True), outputs=specs("OUT", INT32, INT32))
    array = np.zeros((1, 2), np.int32)
    assert list(execute(given, {"IN0": array, "IN1": array}, "OUT1")) == ["OUT1"]


@pytest.mark.parametrize("datatype", dtypes.ALL, ids=repr)
@pytest.mark.parametrize(("max_batch_size", "shape"), [(8, (3, 2, 1)), (0, (2, 1))], ids=["batching", "not batching"])
def test_zeros_for_an_optional_input_that_is_not_given(
    datatype: Datatype, max_batch_size: int, shape: tuple[int, ...]
) -> None:
    optional = TensorSpec("IN1", datatype, (2, -1), optional=True)
    given = config(
        inputs=(*specs("IN", INT32), optional),
        outputs=(*specs("OUT", INT32), TensorSpec("OUT1", datatype, (2, -1))),
        max_batch_size=max_batch_size,
    )
    found = execute(given, {"IN0": np.ones((3, 2), np.int32)}, "OUT0", "OUT1")
    assert (found["OUT1"].dtype, found["OUT1"].shape) == (datatype.numpy, shape)
    assert not found["OUT1"].any()


def test_it_needs_no_file_and_no_gpu_and_knows_nothing_of_the_model() -> None:
    backend = IdentityBackend()
    assert (backend.default_model_filename, backend.default_cpu_instances, backend.gpu_count()) == ("", 1, 0)
    assert backend.open(source(model())).describe() is None


@pytest.mark.parametrize(
    ("parameters", "number", "expected"),
    [
        ({}, 0, []),
        ({"execute_delay_ms": "0"}, 0, []),
        ({"execute_delay_ms": "250"}, 0, [0.25]),
        ({"execute_delay_ms": "0.5"}, 3, [0.0005]),
        ({"execute_delay_ms": "100", "instance_wise_delay_multiplier": "2"}, 1, [0.2]),
        ({"execute_delay_ms": "100", "instance_wise_delay_multiplier": "2"}, 3, [0.6]),
        ({"execute_delay_ms": "100", "instance_wise_delay_multiplier": "2"}, 0, []),
        ({"instance_wise_delay_multiplier": "2"}, 3, []),
    ],
    ids=["none", "zero", "delay", "fraction", "second instance", "fourth instance", "first instance", "no delay"],
)
def test_execution_delays(naps: list[float], parameters: dict[str, str], number: int, expected: list[float]) -> None:
    execute(model(**parameters), {"IN0": np.zeros((1, 2), np.int32)}, "OUT0", number=number)
    assert [nap for nap in naps if nap] == pytest.approx(expected)


def test_loading_delay(naps: list[float]) -> None:
    IdentityBackend().open(source(model(creation_delay_sec="1.5")))
    assert naps == [1.5]


def refusal(given: ModelConfig) -> str:
    with pytest.raises(ModserveError) as caught:
        execute(given, {})
    assert caught.value.code is Code.INVALID_ARG
    return caught.value.message


@pytest.mark.parametrize("name", ["creation_delay_sec", "execute_delay_ms", "instance_wise_delay_multiplier"])
@pytest.mark.parametrize("value", ["soon", "-1", "", "nan"])
def test_delays_that_are_no_numbers(name: str, value: str) -> None:
    assert refusal(model(**{name: value})) == (
        f"model 'model': parameter '{name}' is '{value}', expected a number of 0 or more"
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            config(inputs=specs("IN", INT32, INT32), outputs=specs("OUT", INT32)),
            "model 'model': the identity backend needs as many outputs as inputs, got 2 inputs and 1 outputs",
        ),
        (
            config(inputs=specs("IN", INT32, FP32), outputs=specs("OUT", INT32, INT32)),
            "model 'model': the identity backend copies input 'IN1' (FP32) to output 'OUT1' (INT32), "
            "their data types must be equal",
        ),
    ],
    ids=["numbers", "types"],
)
def test_models_that_it_can_not_be(given: ModelConfig, message: str) -> None:
    assert refusal(given) == message


def test_states_stay_as_they_are() -> None:
    sequences = SequenceBatching(states=(SequenceState("SI", "SO", dtypes.INT32, (1,)),))
    given = replace(model(), sequence_batching=sequences)
    inputs: dict[str, Array] = {name: np.ones((1, 2), np.int32) for name in (*given.inputs_by_name, "SI")}
    instance = IdentityModel().instance(instance_spec(given))
    assert instance.execute(inputs, (*given.output_names, "SO"))["SO"] is inputs["SI"]
