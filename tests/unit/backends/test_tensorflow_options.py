"""The options of the tensorflow backend, without TensorFlow."""

from pathlib import Path
from typing import Any

import pytest

from modserve.backends.api import ModelSource
from modserve.backends.options import default_max_batch_size
from modserve.backends.tensorflow.options import (
    IN_CALLER,
    TensorFlowOptions,
    find_saved_model,
    read_options,
    warnings,
)
from modserve.core.errors import ModserveError
from modserve.testing import config


def source(options: dict[str, str] | None = None, **parameters: str) -> ModelSource:
    path = Path("/models/model/1/model.savedmodel")
    written = config(backend="tensorflow", parameters=parameters)
    return ModelSource(written, 1, path, path.parents[1], cpu_threads=3, cpu_instances=2, options=options or {})


def test_by_default_an_execution_stays_on_its_thread() -> None:
    assert read_options(source()) == TensorFlowOptions(
        signature="",
        tag="serve",
        intra_threads=6,
        inter_threads=IN_CALLER,
        own_threads=False,
        share_count=0,
        init_ops_file=None,
        soft_placement=True,
        gpu_memory_fraction=0.0,
        default_max_batch_size=4,
    )


@pytest.mark.parametrize(
    ("parameters", "changed"),
    [
        ({"TF_SIGNATURE_DEF": "one", "TF_GRAPH_TAG": "two"}, {"signature": "one", "tag": "two"}),
        ({"TF_NUM_INTRA_THREADS": "7", "TF_NUM_INTER_THREADS": "5"}, {"intra_threads": 7, "inter_threads": 5}),
        ({"TF_NUM_INTRA_THREADS": "0", "TF_NUM_INTER_THREADS": "0"}, {"intra_threads": 6, "inter_threads": IN_CALLER}),
        ({"TF_USE_PER_SESSION_THREADS": "On"}, {"own_threads": True, "inter_threads": 3}),
        ({"TF_USE_PER_SESSION_THREADS": "0"}, {"own_threads": False}),
        ({"MAX_SESSION_SHARE_COUNT": "4"}, {"share_count": 4}),
        ({"ALLOW_SOFT_PLACEMENT": "no"}, {"soft_placement": False}),
    ],
)
def test_parameters(parameters: dict[str, str], changed: dict[str, Any]) -> None:
    options = read_options(source(None, **parameters))
    assert {name: getattr(options, name) for name in changed} == changed


def test_options_of_the_backend() -> None:
    options = {"allow-soft-placement": "false", "gpu-memory-fraction": "0.25", "default-max-batch-size": "9"}
    read = read_options(source(options))
    assert (read.soft_placement, read.gpu_memory_fraction, read.default_max_batch_size) == (False, 0.25, 9)
    assert read_options(source(options, ALLOW_SOFT_PLACEMENT="1")).soft_placement
    assert default_max_batch_size({}) == 4


@pytest.mark.parametrize(
    ("options", "parameters", "text"),
    [
        ({}, {"MAX_SESSION_SHARE_COUNT": "0"}, "must be positive number for TensorFlow model 'model'"),
        ({}, {"TF_NUM_INTRA_THREADS": "-2"}, "expected an integer of 0 or more"),
        ({}, {"TF_INIT_OPS_FILE": "/etc/passwd"}, "expected a file in the model's folder"),
        ({}, {"TF_INIT_OPS_FILE": "a/../../b"}, "expected a file in the model's folder"),
        (
            {},
            {"TF_INIT_OPS_FILE": "nosuch.json"},
            "there is neither '/models/model/1/nosuch.json' nor '/models/mode",
        ),
        ({"gpu-memory-fraction": "nan"}, {}, "expected a number from 0 to 1"),
    ],
)
def test_what_is_no_good(options: dict[str, str], parameters: dict[str, str], text: str) -> None:
    with pytest.raises(ModserveError, match=text):
        read_options(source(options, **parameters))


def test_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_XLA_FLAGS", raising=False)
    assert warnings(source(TF_SIGNATURE_DEF="x").config, {"version": "2"}) == []
    assert len(warnings(source(TF_SIGNATUR="x").config, {"version": "1"})) == 2
    levelled = config(backend="tensorflow", graph_optimization_level=1)
    assert "TF_XLA_FLAGS" in warnings(levelled, {})[0]
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit")
    assert warnings(levelled, {}) == []


def test_what_is_a_saved_model(tmp_path: Path) -> None:
    (tmp_path / "model.savedmodel").mkdir()
    assert find_saved_model(tmp_path / "model.savedmodel") == tmp_path / "model.savedmodel"
    assert find_saved_model(tmp_path / "saved_model.pb") == tmp_path
    assert find_saved_model(tmp_path / "model.graphdef") is None
