"""Where a model's chat template is: in its configuration, or in the files that Hugging Face's tokenizers have.

The parameters ``chat_template`` (its text), ``bos_token`` and ``eos_token`` of the configuration go before the files; a
backend whose model files hold a template, as GGUF's metadata does, completes the configuration with them. In the
version's folder, and then in the model's, are looked for ``chat_template.jinja`` and ``tokenizer_config.json``.
"""

from collections.abc import Mapping
from pathlib import Path

from modserve.core.errors import ModserveError, internal, invalid
from modserve.core.files import tokenizer_files
from modserve.core.files.tokenizer_files import CONFIG, SPECIAL_TOKENS, TEMPLATE

from .template import ChatTemplate


def read_template(model: str, parameters: Mapping[str, str], folder: Path | None) -> ChatTemplate | None:
    """The template of a model; None if it has none. Reads files.

    Raises INTERNAL for files that cannot be used, and as `ChatTemplate`.
    """
    source = parameters.get("chat_template")
    tokens: dict[str, str] = {}
    for place in () if folder is None else (folder, folder.parent):
        try:
            files = tokenizer_files.read(place)
        except tokenizer_files.BrokenFileError as error:
            raise internal(f"{error.name} of model '{model}' {error.fault}") from None
        tokens = {**files.tokens, **tokens}
        if source is None:
            source = files.template
    if source is None:
        return None
    tokens |= {name: parameters[name] for name in SPECIAL_TOKENS if name in parameters}
    return ChatTemplate(source, model, tokens)


def no_template(model: str) -> ModserveError:
    """INVALID_ARG, for a conversation with a model that has no template."""
    return invalid(
        f"model '{model}' has no chat template: put {TEMPLATE} or {CONFIG} into its version's folder, set the "
        "parameter chat_template in its configuration, or send the whole prompt to /v1/completions"
    )
