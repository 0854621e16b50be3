"""The models as OpenAI's clients list them."""

import time
from collections.abc import Mapping
from pathlib import Path

from modserve.core.errors import ModserveError
from modserve.frontends import offload
from modserve.protocol.json.json_text import JsonObject
from modserve.server import Server
from modserve.text.chat.contract import contract_of, may_generate
from modserve.text.chat.suggestions import suggest_sampling

_TOKENIZER = "tokenizer.json"
"""Models for the other calls of texts have it."""
_STARTED = int(time.time())
"""Creation time for models: the time of a model's making is unknown."""


def _model_json(name: str) -> JsonObject:
    return {"id": name, "object": "model", "created": _STARTED, "owned_by": "modserve"}


async def model_json(server: Server, name: str) -> JsonObject:
    """Return one model; if it is READY and generates text, with the sampling parameters that suit it."""
    try:
        servable = server.model(name)
    except ModserveError:
        return _model_json(name)
    contract = contract_of(servable.config)
    if contract is None:
        return _model_json(name)
    suggested = await offload.on_thread(suggest_sampling, contract, server.folder(servable.id))
    return _model_json(name) | ({"suggested_sampling": suggested} if suggested else {})


async def list_json(server: Server) -> JsonObject:
    """Return the READY models that take text. One that was never in memory may be one: its tensors are unknown yet."""
    names, folders = set(), {}
    for servable in server.models():
        name, config = servable.id.name, servable.config
        if may_generate(config):
            names.add(name)
        elif (folder := server.folder(servable.id)) is not None:
            folders[name] = folder
    names |= await offload.on_thread(_with_tokenizer, folders)
    return {"object": "list", "data": [_model_json(name) for name in sorted(names)]}


def _with_tokenizer(folders: Mapping[str, Path]) -> set[str]:
    """Return the names of the models that have a tokenizer in their folder."""
    return {name for name, folder in folders.items() if (folder / _TOKENIZER).is_file()}
