"""A picture of a page in, its lines of text out.

Calls other models by `async_exec`: first `find_lines`, then the recogniser for all lines at a time, which lets the
server batch those of the same width.
"""

import asyncio
import io
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image

HEIGHT = 48
WIDTH_STEP = 64
"""Lines are padded to a multiple of this, so that more of them have the same width."""


class TritonPythonModel:
    def initialize(self, args):
        characters = Path(__file__).with_name("characters.txt").read_text(encoding="utf-8").split("\n")
        self.characters = np.array(["", *characters, " "], np.object_)

    async def execute(self, requests):
        return await asyncio.gather(*[self.respond(request) for request in requests])

    async def respond(self, request):
        file = pb_utils.get_input_tensor_by_name(request, "file").as_numpy()[0]
        try:
            page = Image.open(io.BytesIO(file)).convert("RGB")
        except OSError as error:
            reason = pb_utils.TritonError(f"'file' is no picture: {error}", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=reason)
        try:
            boxes, upside_down = await call("find_lines", {"page": np.asarray(page)}, ["boxes", "upside_down"])
            lines = [
                self.read(page.crop(box).rotate(180 if turned else 0))
                for box, turned in zip(boxes.tolist(), upside_down.tolist())
            ]
            readings = await asyncio.gather(*lines)
        except pb_utils.TritonModelException as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("text", np.array([text.encode() for text, _ in readings], np.object_)),
                pb_utils.Tensor("confidence", np.array([confidence for _, confidence in readings], np.float32)),
                pb_utils.Tensor("box", boxes),
            ]
        )

    async def read(self, line):
        """The text of one line, and the mean probability of its characters."""
        line = line.resize((max(1, round(HEIGHT * line.width / line.height)), HEIGHT))
        image = np.full((1, 3, HEIGHT, -(-line.width // WIDTH_STEP) * WIDTH_STEP), -1, np.float32)
        # PP-OCR's networks have blue first, and values from -1 to 1.
        image[0, :, :, : line.width] = np.asarray(line, np.float32)[:, :, ::-1].transpose(2, 0, 1) / 127.5 - 1
        (probabilities,) = await call("recogniser", {"image": image}, ["probabilities"])
        best = probabilities[0].argmax(axis=1)
        # One character may last for several columns; 0 is between characters.
        kept = (best != 0) & (best != np.roll(best, 1))
        if not kept.any():
            return "", 0.0
        return "".join(self.characters[best[kept]]).strip(), probabilities[0].max(axis=1)[kept].mean()


async def call(model, inputs, outputs):
    """The tensors that `model` makes of `inputs`, in the order of `outputs`."""
    response = await pb_utils.InferenceRequest(
        model_name=model,
        requested_output_names=outputs,
        inputs=[pb_utils.Tensor(name, array) for name, array in inputs.items()],
    ).async_exec()
    if response.has_error():
        raise pb_utils.TritonModelException(f"{model}: {response.error().message()}")
    return [pb_utils.get_output_tensor_by_name(response, name).as_numpy() for name in outputs]
