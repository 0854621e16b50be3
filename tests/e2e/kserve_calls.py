"""Calls of KServe's Python client, run by test_kserve_client.py with the Python of ``scripts/clients``.

Arguments: URL for HTTP, address for gRPC, images of digits as a JSON list. Prints a JSON object: answers by name.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable
from typing import Any

import grpc
import httpx
import numpy as np
from kserve import (  # type: ignore[import-not-found]
    InferenceGRPCClient,
    InferenceRESTClient,
    InferInput,
    InferRequest,
    RESTConfig,
)
from kserve.protocol.infer_type import RequestedOutput  # type: ignore[import-not-found]

A = np.arange(16, dtype=np.int32).reshape(1, 16)
B = np.full((1, 16), 3, dtype=np.int32)


def tensor(name: str, array: np.ndarray[Any, Any], datatype: str, binary: bool) -> Any:
    given = InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array, binary_data=binary)
    return given


def simple(*, binary: bool, id: str = "17", outputs: Any = None, model: str = "simple") -> Any:
    inputs = [tensor("INPUT0", A, "INT32", binary), tensor("INPUT1", B, "INT32", binary)]
    return InferRequest(model, inputs, request_id=id, request_outputs=outputs)


def texts(binary: bool) -> Any:
    return InferRequest(
        "identity_BYTES", [tensor("INPUT0", np.array([["ein", "zwei ü"]], np.object_), "BYTES", binary)]
    )


def digits(images: Any, binary: bool) -> Any:
    outputs = [RequestedOutput("label")]
    return InferRequest("digits", [tensor("image", images, "FP32", binary)], request_outputs=outputs)


def told(response: Any) -> Any:
    """An inference response as JSON."""
    return {
        "id": response.id,
        "model_name": response.model_name,
        "outputs": {output.name: plain(output.as_numpy()) for output in response.outputs},
    }


def plain(array: Any) -> Any:
    return [[each.decode() if isinstance(each, bytes) else each for each in row] for row in array.tolist()]


async def refused(call: Awaitable[Any]) -> Any:
    try:
        await call
    except httpx.HTTPStatusError as error:
        return [error.response.status_code, str(error)]
    except grpc.RpcError as error:
        return [error.code().name, error.details()]
    return "answered"


async def over_v1(url: str, images: Any) -> dict[str, Any]:
    async with InferenceRESTClient(RESTConfig(protocol="v1")) as client:
        rows = {"instances": [{"INPUT0": A[0].tolist(), "INPUT1": B[0].tolist()}]}
        labels = await client.infer(url, {"instances": images.tolist()}, model_name="digits")
        return {
            "live": await client.is_server_live(url),
            "model-ready": await client.is_model_ready(url, "simple"),
            "unknown-ready": await refused(client.is_model_ready(url, "nosuch")),
            "infer": await client.infer(url, rows, model_name="simple"),
            "digits": [row["label"] for row in labels["predictions"]],
            "explain": await refused(client.explain(url, "simple", rows)),
            "unknown": await refused(client.infer(url, rows, model_name="nosuch")),
        }


async def over_v2(url: str, images: Any) -> dict[str, Any]:
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:

        async def ask(request: Any) -> Any:
            return told(await client.infer(url, request, model_name=request.model_name))

        binary_output = [RequestedOutput("OUTPUT0", parameters={"binary_data": True})]
        return {
            "live": await client.is_server_live(url),
            "ready": await client.is_server_ready(url),
            "model-ready": await client.is_model_ready(url, "simple"),
            "unknown-ready": await client.is_model_ready(url, "nosuch"),
            "infer-json": await ask(simple(binary=False)),
            "infer-binary": await ask(simple(binary=True)),
            "infer-binary-output": await ask(simple(binary=True, outputs=binary_output)),
            "digits-json": await ask(digits(images, binary=False)),
            "digits-binary": await ask(digits(images, binary=True)),
            "texts-json": await ask(texts(binary=False)),
            "texts-binary": await ask(texts(binary=True)),
            "unknown": await refused(ask(simple(binary=True, model="nosuch"))),
        }


async def over_grpc(address: str, images: Any) -> dict[str, Any]:
    async with InferenceGRPCClient(address) as client:

        async def ask(request: Any) -> Any:
            return told(await client.infer(request))

        return {
            "live": await client.is_server_live(),
            "ready": await client.is_server_ready(),
            "model-ready": await client.is_model_ready("simple"),
            "unknown-ready": await client.is_model_ready("nosuch"),
            "infer-contents": await ask(simple(binary=False)),
            "infer-raw": await ask(simple(binary=True)),
            "digits-contents": await ask(digits(images, binary=False)),
            "digits-raw": await ask(digits(images, binary=True)),
            "texts-raw": await ask(texts(binary=True)),
            "unknown": await refused(ask(simple(binary=True, model="nosuch"))),
        }


async def main(url: str, address: str, images: str) -> None:
    pictures = np.array(json.loads(images), np.float32)
    found = {
        "v1": await over_v1(url, pictures),
        "v2": await over_v2(url, pictures),
        "grpc": await over_grpc(address, pictures),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
