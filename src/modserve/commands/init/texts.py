"""The first calls of new models that take texts."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.configuration.text_settings import TextSettings, TextTask
from modserve.process.console import HttpAddress
from modserve.text.description import describe, is_text_model

_PROMPT = "text_input"
"""The input of models that write texts, as Triton's backend for vLLM has it."""
_CALLS: Mapping[TextTask, tuple[str, Mapping[str, Any]]] = MappingProxyType(
    {
        TextTask.EMBEDDING: ("/v1/embeddings", {"input": "A man is playing a guitar."}),
        TextTask.RERANK: ("/v1/rerank", {"query": "music", "documents": ["A man plays a guitar.", "It rains."]}),
    }
)


def text_calls(model: ModelConfig, folder: Path, place: HttpAddress) -> dict[str, str]:
    """Return the next steps by purpose for a text model with a version in `folder`; empty for a model of tensors."""
    name = shlex.quote(model.name)
    if any(spec.name == _PROMPT for spec in model.inputs):
        body = {
            "model": model.name,
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "max_tokens": 50,
        }
        return {
            "then talk to it:": f"modserve chat {name}",
            "or call it:": _curl(place, "/v1/chat/completions", body),
            "and measure it:": f"modserve bench {name} --openai chat",
        }
    description = describe(folder, TextSettings()) if is_text_model(folder) else None
    if description is None or description.task not in _CALLS:
        return {}
    path, fields = _CALLS[description.task]
    calls = {"then call it:": _curl(place, path, {"model": model.name, **fields})}
    if description.task is TextTask.EMBEDDING:
        calls["and measure it:"] = f"modserve bench {name} --openai embeddings"
    return calls


def _curl(place: HttpAddress, path: str, body: Mapping[str, Any]) -> str:
    return f"{place.curl(path)} -d {shlex.quote(json.dumps(body))}"
