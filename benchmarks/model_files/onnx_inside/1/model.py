"""Runs the ONNX model that lies beside this file."""

import os

import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        path = os.path.join(args["model_repository"], args["model_version"], "perceptron.onnx")
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def execute(self, requests):
        responses = []
        for request in requests:
            feeds = {"INPUT0": pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()}
            (array,) = self.session.run(["OUTPUT0"], feeds)
            responses.append(pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("OUTPUT0", array)]))
        return responses
