"""For LitServe: python litserve_server.py PORT"""

import sys

import litserve as ls
import numpy as np
from onnx_models import NAMES, OnnxModel


class OnnxAPI(ls.LitAPI):
    def __init__(self, name):
        super().__init__(api_path=f"/{name}")
        self._name = name

    def setup(self, device):
        self._model = OnnxModel(self._name)

    def decode_request(self, request):
        return {key: np.asarray(request[key], dtype) for key, dtype in self._model.inputs.items()}

    def predict(self, feeds):
        return self._model.run(feeds)

    def encode_response(self, outputs):
        return {key: value.tolist() for key, value in outputs.items()}


if __name__ == "__main__":
    server = ls.LitServer([OnnxAPI(name) for name in NAMES], accelerator="cpu", workers_per_device=1)
    server.run(
        host="127.0.0.1", port=int(sys.argv[1]), num_api_servers=1, generate_client_file=False, log_level="warning"
    )
