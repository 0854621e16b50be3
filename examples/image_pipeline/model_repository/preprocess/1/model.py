"""JPEG or PNG bytes in, the classifier's tensor out: the middle of the picture, 224 pixels square."""

import io

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image

SIZE = 224
SHORT_SIDE = 256


class TritonPythonModel:
    def execute(self, requests):
        return [respond(request) for request in requests]


def respond(request):
    files = pb_utils.get_input_tensor_by_name(request, "file").as_numpy()
    try:
        images = np.stack([preprocess(file) for file in files.ravel()])
    except (OSError, Image.DecompressionBombError) as error:
        reason = pb_utils.TritonError(f"'file' is no picture: {error}", pb_utils.TritonError.INVALID_ARG)
        return pb_utils.InferenceResponse(error=reason)
    return pb_utils.InferenceResponse([pb_utils.Tensor("image", images)])


def preprocess(file):
    """FP32 [3, 224, 224], values from -1 to 1."""
    with Image.open(io.BytesIO(file)) as image:
        scale = SHORT_SIDE / min(image.size)
        image = image.convert("RGB").resize([round(side * scale) for side in image.size], Image.Resampling.BICUBIC)
    left, top = (image.width - SIZE) // 2, (image.height - SIZE) // 2
    pixels = np.asarray(image.crop((left, top, left + SIZE, top + SIZE)), np.float32)
    return ((pixels - 127) / 128).transpose(2, 0, 1)
