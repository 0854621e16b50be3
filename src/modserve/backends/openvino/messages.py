"""Readable forms of OpenVINO's messages."""

import re

_NOISE = re.compile(
    r"^(Exception from \S+:\d+:|FrontEnd API failed with \w+:|Loading input model|Caught exception: Exception from .*)$"
)
_CHECK = re.compile(r"^(?P<where>\[\w+\] .*? )?Check '.*' failed at \S+:\d+:$")
_MEMORY = ("Failed to allocate", "bad_alloc", "Cannot allocate memory", "out of memory")
_LOAD_HINTS = {
    "bin file cannot be found": "model.xml contains only the graph: the weights, model.bin, must be beside it.",
    "Incorrect weights in bin file": "The .bin file is truncated or belongs to another .xml file.",
    **dict.fromkeys(("parse", "at offset", "corrupted"), "The file is truncated or damaged."),
    **dict.fromkeys(
        ("magic number mismatch", "minimal expected", "exceed data size"),
        "The file of variables is truncated or damaged.",
    ),
    "is not initialized": "The folder 'variables' is missing or incomplete.",
    "Unable to read the model": (
        "OpenVINO reads IR (.xml with .bin), ONNX (.onnx), TensorFlow (SavedModel, frozen), TensorFlow Lite (.tflite) "
        "and PaddlePaddle (.pdmodel): the file is not one of these or is truncated."
    ),
    "No conversion rule": (
        "OpenVINO lacks these operators: serve the model with its original engine (an ONNX "
        'model with backend: "onnxruntime"), or set the parameter CPU_EXTENSION_PATH to a library that has them.'
    ),
}
"""Explanations of OpenVINO's messages about files, by a part of the message."""


def one_line(text: str) -> str:
    """Return OpenVINO's message as one line, without the places in its source."""
    lines = []
    for line in text.splitlines():
        line = line.strip()
        check = _CHECK.match(line)
        if check:
            line = (check["where"] or "").strip()
        if line and not _NOISE.match(line) and line not in lines:
            lines.append(line)
    return " ".join(lines) or "OpenVINO does not give a reason"


def with_hint(text: str) -> str:
    """Return OpenVINO's message about a refused file, and a remedy, as sentences."""
    hint = next((hint for part, hint in _LOAD_HINTS.items() if part in text), "")
    return f"{text.rstrip('.')}. {hint}" if hint else text


def is_about_memory(text: str) -> bool:
    return any(part in text for part in _MEMORY)
