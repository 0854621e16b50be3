"""Where a model's chat template is: in its configuration, or in the files that Hugging Face's tokenizers have.

The parameters ``chat_template`` (its text), ``bos_token`` and ``eos_token`` of the configuration go before the files,
which are ``chat_template.jinja`` and ``tokenizer_config.json`` in the version's folder, and then in the model's. A
backend whose weights hold a template, as GGUF's metadata does, completes the configuration with what no file says.
"""

from collections.abc import Mapping
from pathlib import Path

from modserve.core.errors import ModserveError, internal, invalid
from modserve.core.files import tokenizer_files
from modserve.core.files.tokenizer_files import CONFIG, NO_FILES, SPECIAL_TOKENS, TEMPLATE

from .template import ChatTemplate


def read_template(model: str, parameters: Mapping[str, str], folder: Path | None) -> ChatTemplate | None:
    """The template of a model; None if it has none. Reads files.

    Raises INTERNAL for files that cannot be used, and as `ChatTemplate`.
    """
    try:
        files = NO_FILES if folder is None else tokenizer_files.read_version(folder)
    except tokenizer_files.BrokenFileError as error:
        raise internal(f"{error.name} of model '{model}' {error.fault}") from None
    source = parameters.get("chat_template", files.template)
    if source is None:
        return None
    tokens = {name: parameters[name] for name in SPECIAL_TOKENS if name in parameters}
    return ChatTemplate(source, model, {**files.tokens, **tokens})


def no_template(model: str) -> ModserveError:
    """INVALID_ARG, for a conversation with a model that has no template."""
    return invalid(
        f"model '{model}' has no chat template: put {TEMPLATE} or {CONFIG} into its version's folder, set the "
        "parameter chat_template in its configuration, or send the whole prompt to /v1/completions"
    )
