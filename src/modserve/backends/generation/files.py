"""Facts for chats from the files of a Hugging Face language model."""

import json
from pathlib import Path

from modserve.core.files import regular_file

_CONFIG = "config.json"
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len")


def context_length(folder: Path) -> int:
    """Return the context length in tokens from ``config.json``; 0 if it has none."""
    try:
        config = json.loads(regular_file.read_bytes(folder / _CONFIG))
    except (OSError, ValueError):
        return 0
    for place in (config, config.get("text_config")) if isinstance(config, dict) else ():
        for key in _CONTEXT_KEYS:
            if isinstance(place, dict) and isinstance(place.get(key), int) and place[key] > 0:
                return int(place[key])
    return 0
