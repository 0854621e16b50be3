"""Inputs and outputs of language models: the tensors of Triton's vLLM backend, and `token_ids`."""

from modserve.core.configuration.model_config import DescribedTensor
from modserve.core.tensors import dtypes

_RETURNED = (
    DescribedTensor("finish_reason", dtypes.BYTES, (-1,)),
    DescribedTensor("cumulative_logprob", dtypes.FP32, (-1,)),
    DescribedTensor("logprobs", dtypes.BYTES, (-1,)),
    DescribedTensor("num_input_tokens", dtypes.UINT32, (1,)),
    DescribedTensor("num_output_tokens", dtypes.UINT32, (-1,)),
    DescribedTensor("token_ids", dtypes.BYTES, (-1,)),
)
"""Outputs returned only on request."""
INPUTS = (
    DescribedTensor("text_input", dtypes.BYTES, (1,)),
    DescribedTensor("stream", dtypes.BOOL, (1,), True),
    DescribedTensor("sampling_parameters", dtypes.BYTES, (1,), True),
    DescribedTensor("exclude_input_in_output", dtypes.BOOL, (1,), True),
    *(DescribedTensor(f"return_{output.name}", dtypes.BOOL, (1,), True) for output in _RETURNED),
)
IMAGES = DescribedTensor("image", dtypes.BYTES, (-1,), True)
"""Input of engines with image support: Base64-encoded files."""
OUTPUTS = (DescribedTensor("text_output", dtypes.BYTES, (-1,)), *_RETURNED)
