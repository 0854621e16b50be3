"""Other names in use for the backends: synonyms and misspellings."""

import difflib
from collections.abc import Collection, Mapping
from typing import NamedTuple

_LIKELY = 0.75


class BackendName(NamedTuple):
    """Meaning of a written name: a backend, and the other fields of a configuration that the name decides."""

    backend: str
    platform: str = ""
    parameters: Mapping[str, str] = {}


_OTHER_NAMES: Mapping[str, BackendName] = {
    "onnx ort onnxrt": BackendName("onnxruntime"),
    "torch torchscript pytorchtorchscript torchjit": BackendName("pytorch"),
    "tf tensorflow2 keras tfserving savedmodel": BackendName("tensorflow"),
    "graphdef": BackendName("tensorflow", "tensorflow_graphdef"),
    "trt": BackendName("tensorrt", "tensorrt_plan"),
    "ov openvinoir": BackendName("openvino"),
    "xgboost xgb forest rapidsfil": BackendName("fil"),
    "lightgbm lgbm": BackendName("fil", "", {"model_type": "lightgbm"}),
    "treelite": BackendName("fil", "", {"model_type": "treelite_checkpoint"}),
    "scikitlearn skops": BackendName("sklearn"),
    "dummy": BackendName("identity"),
}
OTHER_NAMES = {name: meaning for names, meaning in _OTHER_NAMES.items() for name in names.split()}
"""The keys are folded: see `fold`."""


def fold(name: str) -> str:
    """Without what people write differently: case, and the marks between words."""
    return "".join(character for character in name.lower() if character not in "_- .")


def meaning(name: str, backends: Collection[str], platforms: Mapping[str, str]) -> BackendName | None:
    """Return the meaning of a name that is none of the `backends`; None if uncertain. `platforms`: to backends."""
    folded = fold(name)
    for platform, backend in platforms.items():
        if fold(platform) == folded:
            return BackendName(backend, platform)
    other = OTHER_NAMES.get(folded)
    if other is not None:
        return other if other.backend in backends else None
    same = next((backend for backend in backends if fold(backend) == folded), None)
    return None if same is None else BackendName(same)


def nearest(name: str, backends: Collection[str]) -> str:
    """Return the one of the `backends` that a misspelt name is likely to be meant for; empty if there is none."""
    folded = {fold(backend): backend for backend in backends}
    near = difflib.get_close_matches(fold(name), folded, n=1, cutoff=_LIKELY)
    return folded[near[0]] if near else ""
