"""Start of OpenVINO GenAI with a model's files and parameters."""

import os
from collections.abc import Mapping
from typing import Any

from ..contract import Replies
from ..figures import Figures
from ..loading import EngineFiles, LoadingError, flag
from .engine import GenerationEngine
from .grammars import shorten_error

_SIZES = ("cache_size", "num_kv_blocks", "max_num_batched_tokens", "max_num_seqs")
_STEP = "max_num_batched_tokens"
_LONGEST = 1 << 20
"""Tokens of a prompt if the model's limit is unknown."""
_LIMITED = ("cache_size", "num_kv_blocks")
EXACT_SETTINGS: Mapping[str, str] = {
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "enable_prefix_caching": "false",
    "dynamic_split_fuse": "false",
}
"""Settings of the parameter `reproducible`: otherwise rounding depends on the batch and on what ran before."""
_FLAGS = ("enable_prefix_caching", "dynamic_split_fuse", "use_cache_eviction", "use_sparse_attention")


def load(files: EngineFiles, figures: Figures, replies: Replies, api: Any) -> GenerationEngine:
    """Load the engine. Raises LoadingError."""
    import openvino_genai

    parameters = files.parameters
    if flag(parameters.get("reproducible", "")):
        parameters = {**parameters, **EXACT_SETTINGS}
    path = os.path.join(files.directory, files.filename)
    scheduler = _scheduler_config(openvino_genai, parameters)
    try:
        pipeline = openvino_genai.ContinuousBatchingPipeline(
            path if path.endswith(".gguf") else files.directory,
            scheduler,
            parameters.get("device", "").upper() or "CPU",
            _properties(openvino_genai, parameters, files.directory),
        )
    except (RuntimeError, TypeError) as error:
        raise LoadingError(f"OpenVINO GenAI cannot load '{path}': {shorten_error(error)}") from None
    return GenerationEngine(
        openvino_genai,
        pipeline,
        scheduler.max_num_seqs,
        int(parameters.get("max_model_len") or 0),
        figures,
        replies,
        api.Logger.log_error,
    )


def _scheduler_config(genai: Any, parameters: Mapping[str, str]) -> Any:
    config = genai.SchedulerConfig()
    # Where the engine has paused outputs for want of room, kept prefixes give others wrong tokens: 3 of 20 equal
    # prompts in 12 blocks. A cache that grows has no such pauses.
    config.enable_prefix_caching = not any(int(parameters.get(name) or 0) for name in _LIMITED)
    for name in _SIZES:
        if parameters.get(name):
            setattr(config, name, int(parameters[name]))
    for name in _FLAGS:
        if parameters.get(name):
            setattr(config, name, flag(parameters[name]))
    if not config.dynamic_split_fuse:
        _make_room(config, parameters)
    return config


def _make_room(config: Any, parameters: Mapping[str, str]) -> None:
    """Make a step hold the longest prompt. Longer unsplit prompts end the engine, also when recomputed later."""
    context = int(parameters.get("max_model_len") or 0)
    if not parameters.get(_STEP):
        setattr(config, _STEP, context or _LONGEST)
    elif getattr(config, _STEP) < (context or _LONGEST):
        raise LoadingError(
            f"parameter '{_STEP}' is {parameters[_STEP]}, but without 'dynamic_split_fuse' a step takes whole prompts: "
            f"leave it out, or make it 'max_model_len' ({context or 'unknown'}) or more"
        )


def _properties(genai: Any, parameters: Mapping[str, str], directory: str) -> dict[str, Any]:
    """Return the engine's properties besides the scheduler's limits: OpenVINO's properties, and adapters."""
    texts = {key: value for key, value in parameters.items() if key == key.upper() and not key.startswith("EXECUTION_")}
    result: dict[str, Any] = {key: int(value) if value.isdecimal() else value for key, value in texts.items()}
    share = os.environ.get("OMP_NUM_THREADS", "")  # of the cores, where a model has several instances
    if share.isdecimal():
        result.setdefault("INFERENCE_NUM_THREADS", int(share))
    names = [each.strip() for each in parameters.get("adapters", "").split(",") if each.strip()]
    if names:
        # Requests cannot choose among adapters where the engine batches them: these are part of the model.
        adapters = genai.AdapterConfig(mode=genai.AdapterConfig.Mode.MODE_STATIC)
        for each in names:
            name, _, weight = each.rpartition(":") if ":" in each else (each, "", "")
            adapters.add(genai.Adapter(os.path.join(directory, name)), float(weight or 1))
        result["adapters"] = adapters
    return result
