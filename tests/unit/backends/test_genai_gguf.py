"""The beginning of GGUF files: whole, broken, and cut anywhere."""

import struct
from pathlib import Path
from typing import Any

import pytest

from modserve.backends.generation.program.on_genai.grammars import write_weightless
from modserve.backends.openvino_genai.gguf import read_header, special_tokens
from modserve.core.errors import Code, ModserveError


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def pair(name: str, kind: int, content: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + content


def strings(*values: str) -> bytes:
    return struct.pack("<IQ", 8, len(values)) + b"".join(map(text, values))


PAIRS = (
    pair("general.architecture", 8, text("llama")),
    pair("tokenizer.ggml.merges", 9, strings("a b", "c d")),
    pair("tokenizer.ggml.scores", 9, struct.pack("<IQ3f", 6, 3, 1, 2, 3)),
    pair("nested", 9, struct.pack("<IQ", 9, 1) + strings("x")),
    pair("tokenizer.ggml.tokens", 9, strings("<s>", "</s>", "né")),
    pair("llama.context_length", 4, struct.pack("<I", 2048)),
    pair("tokenizer.ggml.bos_token_id", 4, struct.pack("<I", 0)),
    pair("tokenizer.ggml.eos_token_id", 4, struct.pack("<I", 1)),
    pair("llama.rope.freq_base", 6, struct.pack("<f", 1.5)),
    pair("tokenizer.chat_template", 8, text("{{ messages }} ☀")),
)


def content(*pairs: bytes, version: int = 3, count: int | None = None) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(pairs) if count is None else count) + b"".join(pairs)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def test_what_is_read(path: Path) -> None:
    path.write_bytes(content(*PAIRS) + b"tensors")
    header = read_header(path)
    assert (header.architecture, header.context_length, header.chat_template) == ("llama", 2048, "{{ messages }} ☀")
    assert header.values["llama.rope.freq_base"] == 1.5
    assert "tokenizer.ggml.merges" not in header.values
    assert special_tokens(path, header) == {"bos_token": "<s>", "eos_token": "</s>"}


def test_a_file_that_says_little(path: Path) -> None:
    path.write_bytes(content(pair("tokenizer.ggml.bos_token_id", 4, struct.pack("<I", 7))))
    header = read_header(path)
    assert (header.architecture, header.context_length, header.chat_template) == ("", 0, "")
    assert special_tokens(path, header) == {}


def test_every_cut_is_told(path: Path) -> None:
    whole = content(*PAIRS)
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with pytest.raises(ModserveError, match="is not a GGUF file that can be read") as raised:
            read_header(path)
        assert raised.value.code is Code.INVALID_ARG


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"x", "it ends too early (at byte 1)"),
        (b"PK\3\4" + bytes(40), "it begins with"),
        (content(*PAIRS, version=1), "its version is 1, expected 2 or 3"),
        (content(count=1 << 60), "it says that it has 1152921504606846976 values"),
        (content(pair("a", 99, b"")), "it has a value of the unknown type 99"),
        (content(pair("a", 8, struct.pack("<Q", 1 << 40))), "something in it is 1099511627776 long"),
        (content(pair("a", 9, struct.pack("<IQ", 9, 1) * 9)), "it has arrays in arrays"),
        (content(pair("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 4, 0))), "its tokens are no texts"),
    ],
)
def test_broken_files(path: Path, data: bytes, message: str) -> None:
    path.write_bytes(data)
    with pytest.raises(ModserveError, match="is not a GGUF file") as raised:
        read_header(path)
    assert message in raised.value.message


def test_a_file_that_was_cut_in_its_tensors(path: Path) -> None:
    write_weightless(str(path), 1000)
    whole = path.read_bytes()
    for end in range(1300, len(whole) - 3000, 1000):
        path.write_bytes(whole[:end])
        with pytest.raises(ModserveError, match=rf"it ends at byte {end}, before its tensor 'blk.0.ffn_down.weight'"):
            read_header(path)


def test_the_model_without_weights(path: Path) -> None:
    """It is a file of holes: as long as its tensors are, but for its beginning without blocks."""
    write_weightless(str(path), 50_000)
    header = read_header(path)
    values: dict[str, Any] = {key: header.values[f"llama.{key}"] for key in ("block_count", "vocab_size")}
    assert values == {"block_count": 1, "vocab_size": 50_000}
    assert path.stat().st_size > 32 * 50_000 * 2
    assert path.stat().st_blocks * 512 < 100_000
