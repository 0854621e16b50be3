"""The chat template and the special tokens in the files of Hugging Face's tokenizers, as they lie in a folder."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from . import regular_file

CONFIG, TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
_MOST_TEMPLATE = 1024 * 1024
_MOST_CONFIG = 64 * 1024 * 1024


class BrokenFileError(ValueError):
    """A file of the folder cannot be used: `name` is its name, and `fault` goes on in the sentence."""

    def __init__(self, name: str, fault: str) -> None:
        super().__init__(f"'{name}' {fault}")
        self.name = name
        self.fault = fault


class TokenizerFiles(NamedTuple):
    """Tokenizer files. `template` is None without one, or if ``tokenizer_config.json`` has some but no ``default``."""

    template: str | None
    tokens: Mapping[str, str]


NO_FILES: Final = TokenizerFiles(None, {})


def read(folder: Path) -> TokenizerFiles:
    """Read the tokenizer files of a folder; empty without any. Raises BrokenFileError."""
    config = _config(folder / CONFIG)
    tokens = {name: text for name in SPECIAL_TOKENS if (text := _token(config.get(name))) is not None}
    path = folder / TEMPLATE
    template = _text(path, _MOST_TEMPLATE) if path.is_file() else _template(config.get("chat_template"))
    return TokenizerFiles(template, tokens)


def read_version(folder: Path) -> TokenizerFiles:
    """Read the settings in the files of a version's folder, and missing ones from the model's.

    Raises BrokenFileError.
    """
    own, shared = read(folder), read(folder.parent)
    return TokenizerFiles(shared.template if own.template is None else own.template, {**shared.tokens, **own.tokens})


def _config(path: Path) -> Mapping[str, object]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(_text(path, _MOST_CONFIG))
    except (json.JSONDecodeError, RecursionError) as error:
        raise BrokenFileError(path.name, f"is no JSON: {error}") from None
    return config if isinstance(config, dict) else {}


def _text(path: Path, most: int) -> str:
    try:
        if path.stat().st_size > most:
            raise BrokenFileError(path.name, f"is longer than {most} bytes")
        return regular_file.read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise BrokenFileError(path.name, f"cannot be read: {error}") from None


def _token(value: object) -> str | None:
    """Read a special token: a text, or an object with the text as its `content`."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _template(value: object) -> str | None:
    """Read a template, or the one named ``default`` of several."""
    if isinstance(value, list):
        named = {each.get("name"): each.get("template") for each in value if isinstance(each, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None
