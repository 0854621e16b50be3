"""Calls of texts that a model takes, for the chat or the box of texts on its page."""

from pathlib import Path
from typing import Any

from modserve.core.errors import ModserveError
from modserve.core.residency import describe
from modserve.core.servable import Servable
from modserve.frontends import offload
from modserve.server import Server
from modserve.text import description
from modserve.text.chat.contract import TEXT_INPUT, Contract, contract_of
from modserve.text.chat.prompts import TextModel
from modserve.text.chat.suggestions import suggest_sampling

_SAMPLING = ("temperature", "max_tokens")
"""The sampling parameters for which the page has fields."""


async def text_json(server: Server, name: str) -> dict[str, Any]:
    """Return the kind of calls of the version that takes a model's texts, and the data for its form.

    `kind` is ``chat``, ``completion``, the value of a `TextTask`, or empty for a model without such calls; `trouble`
    says why calls would fail. Raises as `Server.model`, and why the model cannot be loaded.
    """
    servable = server.model(name)
    await describe(servable)
    folder = server.folder(servable.id)
    contract = contract_of(servable.config)
    try:
        if contract is not None:
            members = await _generation(servable, folder, contract)
        else:
            members = await offload.on_thread(_task, servable, folder)
    except ModserveError as error:
        members = {"kind": "" if contract is None else "chat", "trouble": error.message}
    return {"version": str(servable.id.version), "trouble": "", **members}


async def _generation(servable: Servable, folder: Path | None, contract: Contract) -> dict[str, Any]:
    """Describe a model that generates text. Without a template, one with `text_input` continues texts.

    Raises as `TextModel.read_template`, and `ChatTemplate.compile`."""
    model = TextModel(servable.config, folder)
    if not model.complete:
        await offload.on_thread(model.read_template)
    if model.template is not None:
        await model.template.compile()
    is_chat = model.template is not None or contract.prompt != TEXT_INPUT
    return {
        "kind": "chat" if is_chat else "completion",
        "sampling": [name for name in _SAMPLING if contract.takes(name)],
        "suggested": await offload.on_thread(suggest_sampling, contract, folder),
    }


def _task(servable: Servable, folder: Path | None) -> dict[str, Any]:
    """Describe the task of a model. Raises as `description.describe`."""
    if folder is None or not description.is_text_model(folder):
        return {"kind": ""}
    text = description.describe(folder, servable.config.text)
    return {"kind": "" if text is None else text.task.value}
