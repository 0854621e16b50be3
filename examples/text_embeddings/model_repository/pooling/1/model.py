"""One vector of length 1 for each text: the mean of its tokens' vectors, padding left out."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("embedding", pool(request))]) for request in requests]


def pool(request):
    vectors = pb_utils.get_input_tensor_by_name(request, "token_embeddings").as_numpy()
    mask = pb_utils.get_input_tensor_by_name(request, "attention_mask").as_numpy()
    weights = mask.astype(np.float32)[:, None, :]
    means = (weights @ vectors)[:, 0] / weights.sum(axis=2)
    return means / np.linalg.norm(means, axis=1, keepdims=True)
