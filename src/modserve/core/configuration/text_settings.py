"""Text settings of a model configuration. They take precedence over the files beside the model."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class TextTask(enum.Enum):
    """Task of a text model."""

    EMBEDDING = "embedding"
    """A vector."""
    RERANK = "rerank"
    """A score of a query and a text together: a cross-encoder."""
    CLASSIFICATION = "classification"
    """Scores of labels."""
    TOKEN_CLASSIFICATION = "token_classification"
    """A label for each token."""


@dataclass(frozen=True, slots=True)
class TextSettings:
    """None, or nothing: as the files say."""

    task: TextTask | None = None
    pooling: tuple[str, ...] | None = None
    """The ways in which the vectors of the tokens become one, side by side. Empty: the model's output is the vector."""
    normalize: bool | None = None
    max_length: int | None = None
    """Maximum number of tokens, including those that the tokenizer adds."""
    truncate: bool = True
    """True to truncate longer texts, unless a request says otherwise."""
    default_prompt: str | None = None
    """The name of the prompt of requests that name none; empty: no prompt."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Prompts by name, added to those of the files."""
    activation: str | None = None
    """Activation from logits to scores: ``sigmoid``, ``softmax`` or ``none``."""
    output: str = ""
    """The output that is read."""
    max_texts: int = 2048
    """Maximum number of texts in one request."""


NO_TEXT_SETTINGS = TextSettings()
