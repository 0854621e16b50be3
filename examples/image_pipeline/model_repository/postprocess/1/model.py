"""Probabilities in, the names of the most likely classes out, the best first."""

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        folder = Path(args["model_repository"]) / args["model_version"]
        self.labels = np.array((folder / "labels.txt").read_text(encoding="utf-8").splitlines(), np.object_)
        self.count = pb_utils.get_output_config_by_name(json.loads(args["model_config"]), "label")["dims"][0]

    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        probabilities = pb_utils.get_input_tensor_by_name(request, "probabilities").as_numpy()
        best = np.argsort(-probabilities, axis=1)[:, : self.count]
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("label", self.labels[best]),
                pb_utils.Tensor("probability", np.take_along_axis(probabilities, best, axis=1)),
            ]
        )
