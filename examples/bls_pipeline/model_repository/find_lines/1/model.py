"""Where on a page there are lines of text, and which of them are upside down.

Calls two networks by `exec`: the second one only if the first one has seen text.
"""

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image

LONGEST_SIDE = 960
TEXT = 0.3
"""From what value on a pixel of the detector's map is text."""
UNCLIP = 1.6
"""The detector marks the middle of each line; its border is as much further out as PP-OCR's authors have it."""
SMALLEST_HEIGHT = 3
UPSIDE_DOWN = 0.9


class TritonPythonModel:
    def execute(self, requests):
        return [respond(request) for request in requests]


def respond(request):
    page = Image.fromarray(pb_utils.get_input_tensor_by_name(request, "page").as_numpy())
    try:
        boxes = find_boxes(page)
        upside_down = find_upside_down(page, boxes) if len(boxes) else np.zeros(0, bool)
    except pb_utils.TritonModelException as error:
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
    return pb_utils.InferenceResponse([pb_utils.Tensor("boxes", boxes), pb_utils.Tensor("upside_down", upside_down)])


def call(model, image, output):
    """What `model` makes of `image`: the tensor named `output`."""
    response = pb_utils.InferenceRequest(
        model_name=model, requested_output_names=[output], inputs=[pb_utils.Tensor("image", image)]
    ).exec()
    if response.has_error():
        raise pb_utils.TritonModelException(f"{model}: {response.error().message()}")
    return pb_utils.get_output_tensor_by_name(response, output).as_numpy()


def find_boxes(page):
    """INT32 [lines, 4]: left, top, right and bottom of each line in pixels of the page, from top to bottom."""
    scale = min(1, LONGEST_SIDE / max(page.size))
    width, height = (max(32, round(side * scale / 32) * 32) for side in page.size)
    text = call("detector", normalise(page.resize((width, height)))[None], "text_map")[0, 0] > TEXT

    boxes = []
    for top, bottom in runs(text.any(axis=1)):
        for left, right in runs(text[top:bottom].any(axis=0)):
            rows = np.flatnonzero(text[top:bottom, left:right].any(axis=1)) + top
            high, wide = rows[-1] + 1 - rows[0], right - left
            if high >= SMALLEST_HEIGHT:
                border = high * wide * UNCLIP / (2 * (high + wide))
                boxes.append([left - border, rows[0] - border, right + border, rows[-1] + 1 + border])
    factors = np.array([page.width / width, page.height / height] * 2)
    largest = np.array([page.width, page.height] * 2)
    return np.clip(np.array(boxes).reshape(-1, 4) * factors, 0, largest).round().astype(np.int32)


def runs(flags):
    """Start and end of each unbroken row of true values."""
    edges = np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0))
    return edges.reshape(-1, 2).tolist()


def find_upside_down(page, boxes):
    """BOOL [lines]."""
    lines = np.full((len(boxes), 3, 48, 192), -1, np.float32)
    for line, box in zip(lines, boxes.tolist()):
        crop = page.crop(box)
        crop = crop.resize((min(192, max(1, round(48 * crop.width / crop.height))), 48))
        line[:, :, : crop.width] = normalise(crop)
    return call("orientation", lines, "probabilities")[:, 1] > UPSIDE_DOWN


def normalise(image):
    """FP32 [3, height, width], values from -1 to 1, blue first, as PP-OCR's networks have it."""
    return np.ascontiguousarray(np.asarray(image, np.float32)[:, :, ::-1].transpose(2, 0, 1)) / 127.5 - 1
