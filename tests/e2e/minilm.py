"""all-MiniLM-L6-v2 once more, straight from its published weights: WordPiece in Python, BERT in NumPy, in float64."""

import json
import math
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LAYERS, HEADS, MAX_TOKENS = 6, 12, 256


def _erf(x: Array) -> Array:
    return np.array([*map(math.erf, x.ravel().tolist())]).reshape(x.shape)


@dataclass(frozen=True)
class Network:
    weights: Mapping[str, Array]
    vocabulary: Mapping[str, int]

    def embed(self, text: str) -> Array:
        """[384], of length 1."""
        vectors = self._encode([self.vocabulary[token] for token in self._tokens(text)])
        mean: Array = vectors.mean(axis=0)
        return mean / np.linalg.norm(mean)

    def _tokens(self, text: str) -> list[str]:
        pieces = [piece for word in _words(text) for piece in self._pieces(word)]
        return ["[CLS]", *pieces[: MAX_TOKENS - 2], "[SEP]"]

    def _pieces(self, word: str) -> list[str]:
        """The longest piece first, then the longest of the rest; a word that has none is unknown as a whole."""
        pieces, start = [], 0
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = ("##" if start else "") + word[start:end]
                if piece in self.vocabulary:
                    pieces.append(piece)
                    start = end
                    break
            else:
                return ["[UNK]"]
        return pieces

    def _encode(self, ids: list[int]) -> Array:
        embeddings = self.weights["embeddings.word_embeddings.weight"][ids]
        embeddings = embeddings + self.weights["embeddings.position_embeddings.weight"][: len(ids)]
        x = self._norm(embeddings + self.weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for number in range(LAYERS):
            layer = f"encoder.layer.{number}"
            attended = self._dense(self._attend(x, f"{layer}.attention.self"), f"{layer}.attention.output.dense")
            x = self._norm(x + attended, f"{layer}.attention.output.LayerNorm")
            wide = self._dense(x, f"{layer}.intermediate.dense")
            wide = wide * (1 + _erf(wide / math.sqrt(2))) / 2
            x = self._norm(x + self._dense(wide, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
        return x

    def _attend(self, x: Array, name: str) -> Array:
        queries, keys, values = (
            np.split(self._dense(x, f"{name}.{part}"), HEADS, axis=1) for part in ("query", "key", "value")
        )
        heads = []
        for query, key, value in zip(queries, keys, values, strict=True):
            scores = np.exp(query @ key.T / math.sqrt(query.shape[1]))
            heads.append(scores / scores.sum(axis=1, keepdims=True) @ value)
        return np.concatenate(heads, axis=1)

    def _dense(self, x: Array, name: str) -> Array:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def _norm(self, x: Array, name: str) -> Array:
        centred = x - x.mean(axis=1, keepdims=True)
        scaled: Array = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-12)
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]


def _words(text: str) -> list[str]:
    """Lower case without accents; punctuation and Chinese characters are words of their own."""
    plain = (c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
    return "".join(f" {c} " if _is_alone(c) else c for c in plain).split()


def _is_alone(character: str) -> bool:
    is_symbol = character.isascii() and character.isprintable() and not character.isalnum() and character != " "
    return is_symbol or unicodedata.category(character).startswith("P") or 0x4E00 <= ord(character) <= 0x9FFF


def read(tensors: bytes, vocabulary: bytes) -> Network:
    """From the content of `model.safetensors` and of `vocab.txt`."""
    start = 8 + int.from_bytes(tensors[:8], "little")
    weights = {}
    for name, entry in json.loads(tensors[8:start]).items():
        if entry.get("dtype") == "F32":
            first, last = entry["data_offsets"]
            values = np.frombuffer(tensors, "<f4", (last - first) // 4, start + first)
            weights[name] = values.reshape(entry["shape"]).astype(np.float64)
    return Network(weights, {token: number for number, token in enumerate(vocabulary.decode().splitlines())})
