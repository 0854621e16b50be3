"""The encoder of encoder.py once more, with the same weights, as a PyTorch model: what a PyTorch user would write."""

import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from encoder import MASKED, Array, EncoderSize, weights_of


class Layer(nn.Module):  # type: ignore[misc]
    """Post-norm, as BERT has them."""

    def __init__(self, size: EncoderSize) -> None:
        super().__init__()
        self.heads = size.heads
        for part in ("query", "key", "value", "output"):
            setattr(self, part, nn.Linear(size.width, size.width))
        self.up, self.down = nn.Linear(size.width, size.feed_forward), nn.Linear(size.feed_forward, size.width)
        self.attention_norm = nn.LayerNorm(size.width, eps=1e-12)
        self.feed_forward_norm = nn.LayerNorm(size.width, eps=1e-12)

    def forward(self, hidden: torch.Tensor, penalty: torch.Tensor) -> torch.Tensor:
        batch, sequence, width = hidden.shape

        def split(flat: torch.Tensor) -> torch.Tensor:
            return flat.view(batch, sequence, self.heads, width // self.heads).transpose(1, 2)

        mixed = functional.scaled_dot_product_attention(
            split(self.query(hidden)), split(self.key(hidden)), split(self.value(hidden)), attn_mask=penalty
        )
        attended = self.output(mixed.transpose(1, 2).reshape(batch, sequence, width))
        hidden = self.attention_norm(hidden + attended)
        wide: torch.Tensor = self.down(functional.gelu(self.up(hidden)))
        normalised: torch.Tensor = self.feed_forward_norm(hidden + wide)
        return normalised


class Encoder(nn.Module):  # type: ignore[misc]
    """``input_ids`` and ``attention_mask``, INT64 [batch, sequence] → ``embedding``, FP32 [batch, width]."""

    def __init__(self, size: EncoderSize, weights: Mapping[str, Array]) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Parameter(torch.empty(size.sequence, size.width))
        self.norm = nn.LayerNorm(size.width, eps=1e-12)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        state = {"tokens.weight": weights["tokens"], "positions": weights["positions"]}
        for number in range(size.layers):
            for theirs, ours in (
                *((f"attention.{part}", part) for part in ("query", "key", "value", "output")),
                ("feed_forward.up", "up"),
                ("feed_forward.down", "down"),
            ):
                # PyTorch keeps the matrix of a linear layer with the outputs in front.
                state[f"layers.{number}.{ours}.weight"] = weights[f"layer{number}.{theirs}.weight"].T
                state[f"layers.{number}.{ours}.bias"] = weights[f"layer{number}.{theirs}.bias"]
        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in state.items()}
        lacking, unknown = self.load_state_dict(tensors, strict=False)
        assert not unknown, unknown
        assert all("norm" in name for name in lacking), lacking  # ones and zeros, as PyTorch makes them

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        mask = attention_mask.to(torch.float32)
        hidden = self.norm(self.tokens(input_ids) + self.positions[: input_ids.shape[1]])
        penalty = ((1 - mask) * MASKED)[:, None, None, :].to(hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, penalty)
        kept = (hidden * mask[:, :, None]).sum(1)
        embedding: torch.Tensor = kept / mask.sum(1, keepdim=True).clamp(min=1)
        return embedding


def encoder(size: EncoderSize, seed: int = 0) -> Encoder:
    module = Encoder(size, weights_of(size, seed))
    module.eval()
    return module


def write_torchscript(path: Path, size: EncoderSize, seed: int = 0) -> None:
    """Trace the encoder into a file, for batches and sequences of any length."""
    module = encoder(size, seed)
    example = torch.ones(2, min(8, size.sequence), dtype=torch.int64)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # it prefers torch.export by now
        torch.jit.trace(module, (example, example)).save(str(path))
