"""The limits that the engine's scheduler gets, by the parameters of a model."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from modserve.backends.generation.program.loading import EngineFiles, LoadingError
from modserve.backends.generation.program.on_genai import loading


class Pipeline:
    """The engine, which refuses to start; but it keeps what it was to start with."""

    def __init__(self, path: str, scheduler: Any, device: str, properties: dict[str, Any]) -> None:
        self.started.append((scheduler, properties))
        raise RuntimeError("not here")

    started: list[tuple[Any, dict[str, Any]]] = []  # noqa: RUF012 - of the class, which a test makes anew


def started(monkeypatch: pytest.MonkeyPatch, **parameters: str) -> tuple[Any, dict[str, Any]]:
    """The scheduler's limits, and the properties."""
    engine = type("Engine", (Pipeline,), {"started": []})
    defaults = {"max_num_batched_tokens": 256, "dynamic_split_fuse": True, "max_num_seqs": 256}
    genai = SimpleNamespace(
        SchedulerConfig=lambda: SimpleNamespace(**defaults), ContinuousBatchingPipeline=engine, AdapterConfig=None
    )
    monkeypatch.setitem(sys.modules, "openvino_genai", genai)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    nothing: Any = None
    with pytest.raises(LoadingError) as raised:
        loading.load(EngineFiles("/m", "m.gguf", parameters, "CPU", 0), nothing, nothing, nothing)
    if "not here" not in str(raised.value):
        raise raised.value
    return engine.started[0]  # type: ignore[attr-defined, no-any-return]


def test_reproducible_is_each_of_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    limits, properties = started(monkeypatch, reproducible="true", max_model_len="2048")
    assert (limits.enable_prefix_caching, limits.dynamic_split_fuse) == (False, False)
    assert properties == {
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": "f32",
    }
    limits, properties = started(monkeypatch, reproducible="false")
    assert (limits.enable_prefix_caching, limits.dynamic_split_fuse, properties) == (True, True, {})


def test_a_step_takes_a_whole_prompt_where_prompts_are_not_split(monkeypatch: pytest.MonkeyPatch) -> None:
    assert started(monkeypatch)[0].max_num_batched_tokens == 256
    assert started(monkeypatch, max_model_len="2048")[0].max_num_batched_tokens == 256
    whole = {"dynamic_split_fuse": "false", "max_model_len": "2048"}
    assert started(monkeypatch, **whole)[0].max_num_batched_tokens == 2048
    assert started(monkeypatch, **whole, max_num_batched_tokens="4096")[0].max_num_batched_tokens == 4096
    assert started(monkeypatch, reproducible="true")[0].max_num_batched_tokens == 1 << 20
    message = (
        r"'max_num_batched_tokens' is 300, but without 'dynamic_split_fuse' a step takes whole prompts: .*\(2048\)"
    )
    with pytest.raises(LoadingError, match=message):
        started(monkeypatch, **whole, max_num_batched_tokens="300")
