"""Check of the grammars of structured outputs before the engine sees them.

A grammar that the engine cannot compile raises inside a step of all requests, and the engine is then of no further use.
So each new grammar is first compiled by another engine, which has the tokens of the real one and a model of one layer
that weighs nothing: all of its elements are holes in a file.
"""

import hashlib
import os
import re
import struct
import tempfile
from collections import OrderedDict
from typing import Any

from ..contract import RequestError
from .sampling import Grammar

_WIDTH = 32
_ALIGNMENT = 32
_F32, _F16 = 0, 1
_U32, _FLOAT, _STRING = 4, 6, 8
"""Types of tensors and of values in GGUF files."""
_MOST_KNOWN = 1024
_PLACE = re.compile(r"^(?:\[[\d:]+\] )?\S*?\b\w+\.(?:cc|cpp|hpp|h):\d+:\s*", re.MULTILINE)
"""The line of the engine's source at the beginning of its messages."""


class GrammarChecker:
    """Checker of grammars, for one thread. `genai` is the module of the engine."""

    def __init__(self, genai: Any, tokenizer: Any) -> None:
        self._genai = genai
        self._tokenizer = tokenizer
        self._pipeline: Any = None
        self._known: OrderedDict[bytes, None] = OrderedDict()
        """The digests of grammars that were compiled, the last used ones last."""
        self._number = 0

    def check(self, grammar: Grammar) -> None:
        """Compile a grammar. Raises RequestError."""
        key = hashlib.blake2b(f"{grammar.kind} {grammar.text}".encode("utf-8", "surrogatepass")).digest()
        if key in self._known:
            self._known.move_to_end(key)
            return
        genai = self._genai
        config = genai.GenerationConfig()
        config.apply_chat_template = False
        config.ignore_eos = True
        config.max_new_tokens = 1
        config.structured_output_config = genai.StructuredOutputConfig(**{grammar.kind: grammar.text})
        pipeline = self._pipeline = self._pipeline or self._new()
        self._number += 1
        try:
            handle = pipeline.add_request(self._number, _one_token(), config)
            while pipeline.has_non_finished_requests():
                pipeline.step()
            del handle  # without one, the engine would drop the request
        except RuntimeError as error:
            self._pipeline = None  # it would fail from now on
            raise RequestError(
                f"sampling parameter '{grammar.where}' cannot be compiled: {shorten_error(error)}"
            ) from None
        self._known[key] = None
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)

    def _new(self) -> Any:
        genai = self._genai
        scheduler = genai.SchedulerConfig()
        scheduler.num_kv_blocks = 4
        with tempfile.TemporaryDirectory(prefix="modserve-grammar-") as directory:
            path = os.path.join(directory, "grammar.gguf")
            write_weightless(path, len(self._tokenizer.get_vocab()))
            # OpenVINO's default precision on CPUs with AMX crashes with SIGFPE when there is one thread.
            settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
            return genai.ContinuousBatchingPipeline(path, self._tokenizer, scheduler, "CPU", **settings)


def shorten_error(error: BaseException) -> str:
    """Return the message of an engine's error on one line, without the places in its source."""
    return " ".join(_PLACE.sub("", str(error)).split())


def _one_token() -> Any:
    import numpy as np
    import openvino

    return openvino.Tensor(np.zeros((1, 1), np.int64))


def write_weightless(path: str, vocabulary: int) -> None:
    """Write a GGUF file with a Llama of one layer. Its elements are all zero and take no room on the disk."""
    values = [
        _value("general.architecture", _STRING, "llama"),
        _value("general.file_type", _U32, _F16),
        _value("llama.block_count", _U32, 1),
        _value("llama.context_length", _U32, 64),
        _value("llama.embedding_length", _U32, _WIDTH),
        _value("llama.feed_forward_length", _U32, _WIDTH),
        _value("llama.attention.head_count", _U32, 1),
        _value("llama.attention.head_count_kv", _U32, 1),
        _value("llama.attention.layer_norm_rms_epsilon", _FLOAT, 1e-5),
        _value("llama.rope.dimension_count", _U32, _WIDTH),
        _value("llama.rope.freq_base", _FLOAT, 10000.0),
        _value("llama.vocab_size", _U32, vocabulary),
    ]
    square, vector = (_WIDTH, _WIDTH), (_WIDTH,)
    tensors: list[tuple[str, tuple[int, ...], int]] = [
        ("token_embd.weight", (_WIDTH, vocabulary), _F16),
        ("output_norm.weight", vector, _F32),
        *((f"blk.0.{name}.weight", vector, _F32) for name in ("attn_norm", "ffn_norm")),
        *((f"blk.0.attn_{name}.weight", square, _F16) for name in ("q", "k", "v", "output")),
        *((f"blk.0.ffn_{name}.weight", square, _F16) for name in ("gate", "up", "down")),
    ]
    descriptions, offset = b"", 0
    for name, shape, kind in tensors:
        descriptions += _text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        descriptions += struct.pack("<IQ", kind, offset)
        size = 4 if kind == _F32 else 2
        for length in shape:
            size *= length
        offset += -(-size // _ALIGNMENT) * _ALIGNMENT
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)) + b"".join(values) + descriptions
    head += b"\0" * (-len(head) % _ALIGNMENT)
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(len(head) + offset)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _value(name: str, kind: int, value: Any) -> bytes:
    encoded = _text(value) if kind == _STRING else struct.pack("<I" if kind == _U32 else "<f", value)
    return _text(name) + struct.pack("<I", kind) + encoded
