"""Where a model's chat template is: in its configuration, or in the files that Hugging Face's tokenizers have.

The parameters ``chat_template`` (its text), ``bos_token`` and ``eos_token`` of the configuration go before the files; a
backend whose model files hold a template, as GGUF's metadata does, completes the configuration with them. In the
version's folder, and then in the model's, are looked for ``chat_template.jinja`` and ``tokenizer_config.json``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from modserve.core.errors import ModserveError, internal, invalid, unsupported

if TYPE_CHECKING:
    from .template import ChatTemplate

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
_CONFIG, _TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
_MOST_TEMPLATE = 1024 * 1024
_MOST_CONFIG = 64 * 1024 * 1024


def read_template(model: str, parameters: Mapping[str, str], folder: Path | None) -> "ChatTemplate | None":
    """The template of a model; None if it has none. Reads files.

    Raises INTERNAL for one that cannot be used, UNSUPPORTED without Jinja2.
    """
    source = parameters.get("chat_template")
    tokens: dict[str, str] = {}
    for place in () if folder is None else (folder, folder.parent):
        config = _tokenizer_config(model, place / _CONFIG)
        tokens = {name: text for name in _SPECIAL_TOKENS if (text := _token(config.get(name))) is not None} | tokens
        if source is None and (place / _TEMPLATE).is_file():
            source = _text(model, place / _TEMPLATE, _MOST_TEMPLATE)
        if source is None:
            source = _source(config.get("chat_template"))
    if source is None:
        return None
    tokens |= {name: parameters[name] for name in _SPECIAL_TOKENS if name in parameters}
    try:
        from .template import ChatTemplate
    except ModuleNotFoundError as error:
        if error.name != "jinja2":
            raise
        raise unsupported("chat templates need Jinja2: pip install 'modserve[text]'") from None
    return ChatTemplate(source, model, tokens)


def no_template(model: str) -> ModserveError:
    """INVALID_ARG, for a conversation with a model that has no template."""
    return invalid(
        f"model '{model}' has no chat template: put {_TEMPLATE} or {_CONFIG} into its version's folder, set the "
        "parameter chat_template in its configuration, or send the whole prompt to /v1/completions"
    )


def _tokenizer_config(model: str, path: Path) -> Mapping[str, object]:
    if not path.is_file():
        return {}
    try:
        config = orjson.loads(_text(model, path, _MOST_CONFIG))
    except orjson.JSONDecodeError as error:
        raise internal(f"{path.name} of model '{model}' is no JSON: {error}") from None
    return config if isinstance(config, dict) else {}


def _text(model: str, path: Path, most: int) -> str:
    try:
        if path.stat().st_size > most:
            raise internal(f"{path.name} of model '{model}' is longer than {most} bytes")
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise internal(f"{path.name} of model '{model}' cannot be read: {error}") from None


def _token(value: object) -> str | None:
    """A special token is a text, or an object with the text as its `content`."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _source(value: object) -> str | None:
    """A template, or that named ``default`` of several."""
    if isinstance(value, list):
        named = {each.get("name"): each.get("template") for each in value if isinstance(each, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None
