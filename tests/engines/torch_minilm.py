"""all-MiniLM-L6-v2 in PyTorch, from its published weights, as a TorchScript file."""

import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

LAYERS, HEADS, WIDTH = 6, 12, 384


class Encoder(torch.nn.Module):  # type: ignore[misc]
    """``input_ids`` and ``attention_mask``, INT64 [batch, tokens] → FP32 [batch, tokens, 384]."""

    def __init__(self, weights: Mapping[str, NDArray[np.float32]]) -> None:
        super().__init__()
        for name, array in weights.items():
            self.register_buffer(name.replace(".", "_"), torch.from_numpy(array.copy()))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        batch, tokens = input_ids.shape
        words = functional.embedding(input_ids, self.embeddings_word_embeddings_weight)
        x = (
            words
            + self.embeddings_position_embeddings_weight[:tokens]
            + self.embeddings_token_type_embeddings_weight[0]
        )
        x = self._norm(x, "embeddings_LayerNorm")
        seen = attention_mask.to(torch.bool)[:, None, None, :]
        for number in range(LAYERS):
            layer = f"encoder_layer_{number}"
            query, key, value = (
                self._dense(x, f"{layer}_attention_self_{part}").view(batch, tokens, HEADS, -1).transpose(1, 2)
                for part in ("query", "key", "value")
            )
            mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
            mixed = mixed.transpose(1, 2).reshape(batch, tokens, WIDTH)
            attended = self._dense(mixed, f"{layer}_attention_output_dense")
            x = self._norm(x + attended, f"{layer}_attention_output_LayerNorm")
            wide = functional.gelu(self._dense(x, f"{layer}_intermediate_dense"))
            x = self._norm(x + self._dense(wide, f"{layer}_output_dense"), f"{layer}_output_LayerNorm")
        return x

    def _dense(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, getattr(self, f"{name}_weight"), getattr(self, f"{name}_bias"))

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.layer_norm(x, (WIDTH,), getattr(self, f"{name}_weight"), getattr(self, f"{name}_bias"), 1e-12)


def write(path: Path, weights: Mapping[str, NDArray[np.float32]]) -> None:
    example = torch.ones(2, 8, dtype=torch.int64)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # it prefers torch.export by now
        torch.jit.trace(Encoder(weights).eval(), (example, example)).save(str(path))
