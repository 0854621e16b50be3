"""For BentoML: bentoml serve bento_service:Models"""

from typing import Any

import bentoml
from onnx_models import NAMES, OnnxModel


def endpoint(name):
    """The API of one model, whose parameters are its inputs; on the event loop, as a thread costs small models more."""
    if name == "simple":

        async def simple(self, INPUT0: list[list[int]], INPUT1: list[list[int]]) -> dict[str, Any]:
            return self.models["simple"].run_lists({"INPUT0": INPUT0, "INPUT1": INPUT1})

        return simple
    if name == "mlp":

        async def mlp(self, INPUT: list[list[float]]) -> dict[str, Any]:
            return self.models["mlp"].run_lists({"INPUT": INPUT})

        return mlp

    async def encoder(self, input_ids: list[list[int]], attention_mask: list[list[int]]) -> dict[str, Any]:
        return self.models["encoder"].run_lists({"input_ids": input_ids, "attention_mask": attention_mask})

    return encoder


def start(self):
    self.models = {name: OnnxModel(name) for name in NAMES}


_APIS = {name: bentoml.api(endpoint(name), route=f"/{name}") for name in NAMES}
Models = bentoml.service(
    type("Models", (), {"__init__": start, "__module__": __name__, **_APIS}),
    workers=1,
    traffic={"timeout": 60, "concurrency": 100},
    logging={"access": {"enabled": False}},
)
