"""Options of the ``fil`` backend: model parameters and ``--backend-config`` keys.

Parameter names follow Triton's forest backend (its docs/model_config.md and ``RapidsSharedState`` in
src/shared_state.h). A warning explains each parameter without effect.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from modserve.core.configuration.model_config import ModelConfig

from ..options import MAX_BATCH_SIZE, parameters_of, unknown_parameters
from .formats import FILENAMES

BACKEND_OPTIONS: Mapping[str, str] = {MAX_BATCH_SIZE: ""}
PREDICTORS = ("onnxruntime", "treelite")
_IS_CLASSIFIER, _OUTPUT_CLASS = "is_classifier", "output_class"
_KNOWN = (
    "model_type",
    "predict_proba",
    _OUTPUT_CLASS,
    _IS_CLASSIFIER,
    "threshold",
    "xgboost_allow_unknown_field",
    "cpu_nthread",
    "predictor",
)
_FOR_GPUS = "it is for GPUs, but this backend runs forests on the CPU"
_LAYOUT = "the engine chooses the memory layout and divides batches itself"
_WITHOUT_EFFECT = {
    "storage_type": _FOR_GPUS,
    "algo": _FOR_GPUS,
    "blocks_per_sm": _FOR_GPUS,
    "threads_per_tree": _FOR_GPUS,
    "transfer_threshold": _FOR_GPUS,
    "use_experimental_optimizations": "it selects one of the predictors of Triton's backend",
    "layout": _LAYOUT,
    "chunk_size": _LAYOUT,
}


@dataclass(frozen=True, slots=True)
class ForestOptions:
    """Parameters of one model. None or empty: the file decides."""

    model_type: str = ""
    predict_proba: bool = False
    output_class: bool | None = None
    threshold: float | None = None
    unknown_fields: bool = False
    threads: int = 0
    predictor: str = ""


def model_options(config: ModelConfig) -> ForestOptions:
    """Read the options of a model. Raises INVALID_ARG, with the model's name and the expected value."""
    values = parameters_of(config)
    classifier = _IS_CLASSIFIER if _IS_CLASSIFIER in values else _OUTPUT_CLASS
    threshold = values.number("threshold", math.nan, lambda _: True, "a number, such as 0.5")
    return ForestOptions(
        model_type=values.choice("model_type", FILENAMES),
        predict_proba=values.flag("predict_proba", default=False),
        output_class=values.flag(classifier, default=False) if classifier in values else None,
        threshold=None if math.isnan(threshold) else threshold,
        unknown_fields=values.flag("xgboost_allow_unknown_field", default=False),
        threads=0 if values.text("cpu_nthread").startswith("-") else values.integer("cpu_nthread", 0),
        predictor=values.choice("predictor", PREDICTORS),
    )


def warnings(config: ModelConfig) -> list[str]:
    """Return warnings about a model's parameters that have no effect, with reasons."""
    notes = [
        f"model '{config.name}': parameter '{key}' has no effect: {_WITHOUT_EFFECT[key]}"
        for key in config.parameters
        if key in _WITHOUT_EFFECT
    ]
    return notes + unknown_parameters("fil", config, (*_KNOWN, *_WITHOUT_EFFECT))
