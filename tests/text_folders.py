"""Folders of text models as they come, with small tokenizers that are real."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

WORDS = ("the", "cat", "sat", "on", "a", "mat", "dog", "ran", "fast", "query", "passage", ":", "hello", "world")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
IDS = {word: number for number, word in enumerate((*SPECIAL, *WORDS))}

MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]


def tokenizer() -> Tokenizer:
    """Words in lower case, between [CLS] and [SEP]; the second of a pair has type 1. Its file pads and cuts to 4."""
    whole = Tokenizer(models.WordLevel(IDS, unk_token="[UNK]"))
    whole.add_special_tokens([*SPECIAL])
    whole.normalizer = normalizers.Lowercase()
    whole.pre_tokenizer = pre_tokenizers.Whitespace()
    whole.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", IDS["[CLS]"]), ("[SEP]", IDS["[SEP]"])],
    )
    whole.enable_truncation(4)
    whole.enable_padding(length=4, pad_id=IDS["[PAD]"], pad_token="[PAD]")
    return whole


def write_folder(folder: Path, files: Mapping[str, Any] | None = None, *, with_tokenizer: bool = True) -> Path:
    """A folder with files of JSON by name, and a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    if with_tokenizer:
        tokenizer().save(str(folder / "tokenizer.json"))
    for name, content in (files or {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def safetensors(tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """A file of that format. uint16 is BF16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    names = {np.dtype("f8"): "F64", np.dtype("f4"): "F32", np.dtype("f2"): "F16", np.dtype("u2"): "BF16"}
    for name, tensor in tensors.items():
        place = [len(data), len(data) + tensor.nbytes]
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": place}
        data += tensor.tobytes()
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data
