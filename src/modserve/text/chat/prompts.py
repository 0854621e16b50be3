"""Conversion of a conversation to a model's prompt."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import invalid

from . import fields
from .contract import TEXT_INPUT, Contract, contract_of
from .errors import field_error
from .fields import STRUCTURE
from .requests import CONTINUE, ChatRequest, TextRequest
from .template import ChatTemplate, no_template, read_template


class TextModel:
    """A text generation model, as loaded. Raises INVALID_ARG for another model."""

    def __init__(self, config: ModelConfig, folder: Path | None) -> None:
        contract = contract_of(config)
        if contract is None:
            raise invalid(
                f"model '{config.name}' does not generate text: that takes an input and an output of one text, such as "
                "text_input and text_output"
            )
        self.contract: Contract = contract
        self.config = config
        self.folder = folder
        self.template: ChatTemplate | None = None
        self.complete = contract.takes_messages
        """True once the template, if any, has been read."""

    def read_template(self) -> None:
        """Read the template's files; on a thread. Raises like `template_files.read_template`."""
        self.template = read_template(self.config.name, self.config.parameters, self.folder)
        self.complete = True

    def check(self, request: TextRequest) -> None:
        """Raise `RequestFieldError` for requirements that the model cannot meet, and that must not be ignored."""
        name = self.config.name
        if request.logprobs is not None and not self.contract.gives_logprobs:
            raise field_error("logprobs", f"model '{name}' gives no log probabilities: it has no output 'logprobs'")
        for parameter, value in request.sampling.items():
            if fields.is_demand(parameter, value) and not self.contract.takes(parameter):
                field = request.structure_field if parameter == STRUCTURE else parameter
                raise field_error(
                    field,
                    f"model '{name}' cannot be held to '{field}': it has no input 'sampling_parameters' or "
                    f"'{parameter}'; leave it out",
                )
        if "stop" in request.sampling and not request.stops and not self.contract.takes("stop"):
            raise field_error("stop", f"'stop' and 'min_tokens' exclude each other: model '{name}' has no input 'stop'")

    def make_untemplated_prompt(self, chat: ChatRequest) -> str | None:
        """Return the prompt if it needs no template; an existing template has been compiled.

        Raises like `check`, and INVALID_ARG if a template is needed.
        """
        name = self.config.name
        if self.contract.takes_messages:
            if chat.continued:
                raise field_error(CONTINUE, f"'{CONTINUE}' is not for model '{name}', which takes messages")
            return _json(chat.messages).decode()
        if chat.tools.tools and (self.template is None or not self.template.takes_tools):
            raise field_error("tools", f"model '{name}' takes no tools: its chat template has no place for them")
        if self.template is not None:
            return None
        if self.contract.prompt == TEXT_INPUT:
            raise no_template(name)
        return transcript(chat.messages)


def transcript(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return a conversation for a function without a template: the text of the only message, or a line for each."""
    if len(messages) == 1:
        return str(messages[0]["content"] or "")
    lines = [f"{message['role']}: {message['content'] or ''}" for message in messages]
    return "\n".join([*lines, "assistant:"])


def up_to(prompt: str, message: str) -> str:
    """Return the prompt up to the end of its last message, the text `message`; templates may strip white space around
    it.

    Raises `RequestFieldError` for a prompt without the message.
    """
    before, text, behind = prompt.rpartition(message.strip())
    if not text:
        raise field_error(CONTINUE, f"'{CONTINUE}': the chat template leaves the last message out, or changes it")
    space = message[len(message.rstrip()) :]
    return before + text + (space if behind.startswith(space) else "")


def variables_of(chat: ChatRequest) -> bytes:
    """Return the variables of a template, as JSON."""
    variables = {
        "messages": chat.messages,
        "tools": list(chat.tools.tools) or None,
        "documents": None,
        "add_generation_prompt": chat.add_generation_prompt,
        **chat.template_arguments,
    }
    return _json(variables)


def _json(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError as error:  # it writes fewer nesting levels than it reads
        raise invalid(f"the conversation cannot be handed to a model: {error}") from None
