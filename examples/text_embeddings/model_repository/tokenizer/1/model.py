"""Texts in, token ids out: the WordPiece tokenizer that the encoder was trained with."""

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

MAX_TOKENS = 256
PAD_TO_MULTIPLE_OF = 16
"""Requests of similar lengths become tensors of one shape, which the encoder can batch."""


class TritonPythonModel:
    def initialize(self, args):
        self.tokenizer = Tokenizer.from_file(str(Path(__file__).with_name("tokenizer.json")))
        self.tokenizer.enable_truncation(MAX_TOKENS)
        self.tokenizer.enable_padding(pad_to_multiple_of=PAD_TO_MULTIPLE_OF)

    def execute(self, requests):
        return [self.tokenize(request) for request in requests]

    def tokenize(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
        try:
            encodings = self.tokenizer.encode_batch([text.decode() for text in texts.ravel()])
        except UnicodeDecodeError as error:
            reason = pb_utils.TritonError(f"'text' is not UTF-8: {error}", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=reason)
        ids = np.array([encoding.ids for encoding in encodings], np.int64)
        mask = np.array([encoding.attention_mask for encoding in encodings], np.int64)
        return pb_utils.InferenceResponse([pb_utils.Tensor("input_ids", ids), pb_utils.Tensor("attention_mask", mask)])
