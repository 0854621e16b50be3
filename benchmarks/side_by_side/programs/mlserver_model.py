"""For MLServer: a runtime of one's own, as its documentation shows it."""

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse
from onnx_models import OnnxModel


class OnnxRuntime(MLModel):
    async def load(self):
        self._model = OnnxModel(self.name)
        return True

    async def predict(self, payload):
        outputs = self._model.run({each.name: NumpyCodec.decode_input(each) for each in payload.inputs})
        return InferenceResponse(
            model_name=self.name,
            model_version=self.version,
            outputs=[NumpyCodec.encode_output(name, value) for name, value in outputs.items()],
        )
