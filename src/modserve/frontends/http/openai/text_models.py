"""Prompts and tokenizers of the models that generate text, kept for each load of a model."""

import asyncio
import logging
from functools import partial
from weakref import WeakKeyDictionary

from modserve.core.errors import Code, ModserveError
from modserve.core.residency import describe
from modserve.core.servable import Servable
from modserve.core.tenants import Tenant
from modserve.frontends import offload
from modserve.server import Server
from modserve.settings import LoopLimits
from modserve.text.chat.contract import may_generate
from modserve.text.chat.counting import read_tokenizer
from modserve.text.chat.prompts import TextModel, up_to, variables_of
from modserve.text.chat.requests import ChatRequest, TextRequest
from modserve.text.openai_errors import MODEL_NOT_FOUND, RequestFieldError, format_names
from modserve.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)


class TextModels:
    """`TextModel` by servable, for as long as its configuration is the same."""

    def __init__(self, server: Server, limits: LoopLimits) -> None:
        self._server = server
        self._limits = limits
        self._models: WeakKeyDictionary[Servable, TextModel] = WeakKeyDictionary()
        self._tokenizers: WeakKeyDictionary[TextModel, asyncio.Future[Tokenizer | None]] = WeakKeyDictionary()

    def only(self, from_prompt: bool) -> str:
        """Return the only model that generates text, for a request that names none; `from_prompt`, not only from
        messages.

        Raises INVALID_ARG or NOT_FOUND.
        """
        names = sorted({each.id.name for each in self._server.models() if may_generate(each.config, from_prompt)})
        if len(names) == 1:
            return names[0]
        if not names:
            raise RequestFieldError("there is no model that generates text", "model", MODEL_NOT_FOUND, Code.NOT_FOUND)
        raise RequestFieldError(f"'model' is missing; models that generate text are: {format_names(names)}", "model")

    async def of(self, servable: Servable) -> TextModel:
        """Return the model that generates text. Raises INVALID_ARG for any other, and why it cannot be loaded."""
        model = self._models.get(servable)
        if model is None or model.config is not servable.config:
            await describe(servable)
            model = self._models[servable] = TextModel(servable.config, self._server.folder(servable.id))
        return model

    async def tokenizer(self, model: TextModel, request: TextRequest, tenant: Tenant | None) -> Tokenizer | None:
        """Return a tokenizer to count tokens, for a response or a tenant; None if the model does, or there is none."""
        if model.contract.counts or not (request.reports_usage or tenant is not None):
            return None
        reading = self._tokenizers.get(model)
        if reading is None:
            reading = self._tokenizers[model] = offload.in_background(partial(_tokenizer, model))
        return reading.result() if reading.done() else await asyncio.shield(reading)  # others wait for the same

    async def prompt(self, model: TextModel, chat: ChatRequest, size: int) -> str:
        """Return the text for a conversation of `size` bytes. Raises what is wrong with it or the chat template."""
        if not model.complete:
            await offload.on_thread(model.read_template)
        template = model.template
        if template is not None:
            await template.compile()
        prompt = model.make_untemplated_prompt(chat)
        if prompt is None:
            assert template is not None, "or the prompt were a plain one: this is a bug"
            long = size > self._limits.json
            prompt = await template.render(await offload.on_thread(variables_of, chat) if long else variables_of(chat))
        return up_to(prompt, chat.continued) if chat.continued else prompt


def _tokenizer(model: TextModel) -> Tokenizer | None:
    try:
        return read_tokenizer(model.folder)
    except ModserveError as error:
        _log.warning("the tokens of model '%s' are not counted: %s", model.config.name, error.message)
        return None
