"""The models as OpenAI's clients list them."""

import time

from modserve.core.servable import Servable
from modserve.protocol.json.json_text import JsonObject
from modserve.server import Server
from modserve.text.chat.contract import contract_of

_STARTED = int(time.time())
"""Stands for when a model was made, of which nothing is known."""


def model_json(name: str) -> JsonObject:
    """One model."""
    return {"id": name, "object": "model", "created": _STARTED, "owned_by": "modserve"}


def list_json(server: Server) -> JsonObject:
    """The READY models that take text. One that was never in memory may be one: nobody knows its tensors yet."""
    names = sorted({servable.id.name for servable in server.models() if _takes_text(servable)})
    return {"object": "list", "data": [model_json(name) for name in names]}


def _takes_text(servable: Servable) -> bool:
    config = servable.config
    return not (config.inputs or config.outputs) or contract_of(config) is not None
