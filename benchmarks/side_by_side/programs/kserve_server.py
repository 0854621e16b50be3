"""For KServe's Python server: python kserve_server.py --http_port N --grpc_port N"""

import kserve
from kserve import InferOutput, InferResponse
from kserve.logging import KSERVE_LOG_CONFIG, configure_logging
from kserve.utils.numpy_codec import from_np_dtype
from onnx_models import NAMES, OnnxModel


class OnnxRuntime(kserve.Model):
    def load(self):
        self._model = OnnxModel(self.name)
        self.ready = True
        return True

    def predict(self, payload, headers=None, response_headers=None):
        outputs = self._model.run({each.name: each.as_numpy() for each in payload.inputs})
        tensors = []
        for name, value in outputs.items():
            tensor = InferOutput(name, list(value.shape), from_np_dtype(value.dtype))
            tensor.set_data_from_numpy(value, binary_data=payload.use_binary_outputs)
            tensors.append(tensor)
        return InferResponse(
            response_id=payload.id or "",  # a response of its HTTP interface must have one
            model_name=self.name,
            infer_outputs=tensors,
            use_binary_outputs=payload.use_binary_outputs,
        )


if __name__ == "__main__":
    arguments = kserve.model_server.parser.parse_args()
    models = [OnnxRuntime(name) for name in NAMES]
    for model in models:
        model.load()
    loggers = {name: {**each, "level": "WARNING"} for name, each in KSERVE_LOG_CONFIG["loggers"].items()}
    configure_logging({**KSERVE_LOG_CONFIG, "loggers": loggers})  # no line for each request, as elsewhere
    server = kserve.ModelServer(
        http_port=arguments.http_port,
        grpc_port=arguments.grpc_port,
        enable_latency_logging=False,
    )
    server.start(models)
