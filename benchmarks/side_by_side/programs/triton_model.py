"""For Triton's Python backend: the requests of an execution run as one batch."""

import numpy as np
import triton_python_backend_utils as pb_utils
from onnx_models import OnnxModel


class TritonPythonModel:
    def initialize(self, args):
        self._model = OnnxModel(args["model_name"])

    def execute(self, requests):
        rows = [
            {name: pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in self._model.inputs}
            for request in requests
        ]
        if len(rows) == 1:
            return [self._response(self._model.run(rows[0]))]
        outputs = self._model.run({name: np.concatenate([each[name] for each in rows]) for name in self._model.inputs})
        responses, at = [], 0
        for each in rows:
            count = len(next(iter(each.values())))
            responses.append(self._response({name: value[at : at + count] for name, value in outputs.items()}))
            at += count
        return responses

    def _response(self, outputs):
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in outputs.items()])
