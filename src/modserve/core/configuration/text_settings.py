"""Text settings of a model configuration. They override the model's files."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class TextTask(enum.Enum):
    """Task of a text model."""

    EMBEDDING = "embedding"
    """A vector."""
    RERANK = "rerank"
    """A score for a pair of query and text, by a cross-encoder."""
    CLASSIFICATION = "classification"
    """Scores of labels."""
    TOKEN_CLASSIFICATION = "token_classification"
    """A label for each token."""


@dataclass(frozen=True, slots=True)
class TextSettings:
    """Text settings. None or empty values are taken from the model's files."""

    task: TextTask | None = None
    pooling: tuple[str, ...] | None = None
    """Pooling methods of token vectors, with concatenated results. Empty: the model's output is the vector."""
    normalize: bool | None = None
    max_length: int | None = None
    """Maximum number of tokens, including special tokens added by the tokenizer."""
    truncate: bool = True
    """True to truncate longer texts, unless a request says otherwise."""
    default_prompt: str | None = None
    """Name of the default prompt; empty: no prompt."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Prompts by name, in addition to the prompts in the files."""
    activation: str | None = None
    """Activation from logits to scores: ``sigmoid``, ``softmax`` or ``none``."""
    output: str = ""
    """Name of the output to read."""
    max_texts: int = 2048
    """Maximum number of texts in one request."""


NO_TEXT_SETTINGS = TextSettings()
