"""A Python model that dies where a request says so; what it does else depends on its name.

``plain``: OUTPUT is twice INPUT and one. ``caller``: the same, of what ``plain`` makes of INPUT. ``stream``: COUNT
responses, INPUT and the index of the response, sent by a thread.
"""

import json
import os
import threading
import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]


def die(request: Any, here: str) -> None:
    parameters = json.loads(request.parameters())
    where = parameters.get("die")
    if where == here:
        os._exit(9)
    if where == "any time" and here == "begin":
        threading.Timer(parameters["after_us"] / 1e6, os._exit, (9,)).start()


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self.kind = args["model_name"].partition("_")[0]

    def execute(self, requests: list[Any]) -> Any:
        return getattr(self, self.kind)(requests)

    def plain(self, requests: list[Any]) -> list[Any]:
        responses = []
        for request in requests:
            die(request, "begin")
            array = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            time.sleep(0.002)
            die(request, "middle")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", array * 2 + 1)]))
            die(request, "end")
        return responses

    def caller(self, requests: list[Any]) -> list[Any]:
        responses = []
        for request in requests:
            die(request, "begin")
            call = pb_utils.InferenceRequest(
                model_name="plain_0", requested_output_names=["OUTPUT"], inputs=request.inputs()
            )
            if json.loads(request.parameters()).get("die") == "middle":
                threading.Timer(0.001, os._exit, (9,)).start()
            response = call.exec()
            if response.has_error():
                responses.append(pb_utils.InferenceResponse(error=response.error()))
                continue
            array = pb_utils.get_output_tensor_by_name(response, "OUTPUT").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", array * 2 + 1)]))
            die(request, "end")
        return responses

    def stream(self, requests: list[Any]) -> None:
        for request in requests:
            die(request, "begin")
            threading.Thread(target=self.send, args=(request, request.get_response_sender())).start()

    def send(self, request: Any, sender: Any) -> None:
        array = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
        count = int(json.loads(request.parameters())["count"])
        for index in range(count):
            time.sleep(0.001)
            output = pb_utils.Tensor("OUTPUT", array + np.float32(index))
            if index == count // 2:
                die(request, "middle")
            sender.send(pb_utils.InferenceResponse([output]))
        die(request, "end")
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
