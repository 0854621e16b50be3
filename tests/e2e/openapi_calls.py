"""Inferences by clients that were generated from models' OpenAPI documents; the outputs, as JSON.

    openapi_calls.py FOLDER ADDRESS

FOLDER has the packages, each with the name of its model and `_client`. Runs in the environment of `scripts/clients`.
"""

import importlib
import json
import sys
from types import ModuleType
from typing import Any

FOLDER, ADDRESS = sys.argv[1:]
sys.path.insert(0, FOLDER)


def part(model: str, name: str) -> ModuleType:
    return importlib.import_module(f"{model}_client.{name}")


def call(model: str, call: str, body: object) -> Any:
    client = part(model, "client").Client(base_url=ADDRESS)
    return part(model, f"api.inference.{call}").sync(client=client, body=body)


simple, digits = part("simple", "models"), part("digits", "models")
inputs = [
    simple.INPUT0Input(name="INPUT0", datatype="INT32", shape=[1, 16], data=list(range(16))),
    simple.INPUT1Input(name="INPUT1", datatype="INT32", shape=[1, 16], data=[1] * 16),
]
response = call("simple", "infer", simple.InferRequest(inputs=inputs, id="mine"))
flat = call("simple", "generate", simple.GenerateRequest(input0=list(range(16)), input1=[2] * 16))
wrong = simple.InferRequest(inputs=inputs[:1])
image = digits.ImageInput(name="image", datatype="FP32", shape=[2, 64], data=[0.5] * 128)
images = call("digits", "infer", digits.InferRequest(inputs=[image]))
results = {
    "id": response.id,
    "infer": {type(output).__name__: output.data for output in response.outputs},
    "generate": [flat.output0, flat.output1],
    "error": call("simple", "infer", wrong).error,
    "digits": {output.name: [output.shape, len(output.data)] for output in images.outputs},
    "ready": part("simple", "api.health.ready").sync(client=part("simple", "client").Client(base_url=ADDRESS)).ready,
}
print(json.dumps(results))
