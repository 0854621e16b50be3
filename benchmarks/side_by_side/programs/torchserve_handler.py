"""For TorchServe: a handler around ONNX Runtime; JSON over HTTP, raw tensors over gRPC."""

import json

import numpy as np
from onnx_models import OnnxModel


class Handler:
    def initialize(self, context):
        self._model = OnnxModel(context.manifest["model"]["modelName"])

    def handle(self, data, context):
        return [self._one(each) for each in data]

    def _one(self, data):
        body = data.get("body")
        if body is None:
            feeds = {key: np.frombuffer(data[key], dtype).reshape(1, -1) for key, dtype in self._model.inputs.items()}
            return b"".join(value.tobytes() for value in self._model.run(feeds).values())
        if not isinstance(body, dict):
            body = json.loads(body)
        return self._model.run_lists(body)
