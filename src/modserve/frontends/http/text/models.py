"""The text models among the server's, with their tokenizers: read at the first call, dropped with the version."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

from modserve.core.configuration.model_config import ModelConfig
from modserve.core.configuration.text_settings import TextSettings, TextTask
from modserve.core.errors import Code, ModserveError, unavailable
from modserve.core.residency import describe
from modserve.core.servable import Handle, Servable
from modserve.core.version import ModelId, without_owner
from modserve.frontends import offload
from modserve.server import Server
from modserve.text import description, tokenizer
from modserve.text.description import TextDescription, no_text_model
from modserve.text.openai_errors import MODEL_NOT_FOUND, RequestFieldError, format_names
from modserve.text.outputs import TensorPlan
from modserve.text.tokenizer import Tokenizer

Value = TypeVar("Value")


class TextHandle:
    """Borrowed version of a text model. `close` gives it back."""

    __slots__ = ("_handle", "name", "plan", "servable", "text", "tokenizer")

    def __init__(
        self, name: str, handle: Handle, text: TextDescription, tokenizer: Tokenizer, plan: TensorPlan
    ) -> None:
        self.name = name
        self._handle = handle
        self.servable = handle.servable
        self.text = text
        self.tokenizer = tokenizer
        self.plan = plan

    def close(self) -> None:
        self._handle.release()


class _Entry:
    """Files and plan of one version. Failures are kept: the files of a version in service do not change."""

    __slots__ = ("_plan", "folder", "servable", "settings", "text", "tokenizer")

    def __init__(self, servable: Servable, folder: Path) -> None:
        self.servable = servable
        self.folder = folder
        self.settings = settings = servable.config.text
        self.text = _reading(lambda: _describe(folder, servable.id.name, settings))
        self.tokenizer: asyncio.Future[Tokenizer | ModserveError] | None = None
        self._plan: tuple[ModelConfig, TensorPlan] | None = None

    @property
    def is_planned(self) -> bool:
        """True if there is a plan for the current configuration, which is complete then."""
        return self._plan is not None and self._plan[0] is self.servable.config

    def plan(self, text: TextDescription) -> TensorPlan:
        """Return the plan for the current configuration, which may change in place. Raises as `TensorPlan`."""
        config = self.servable.config
        if self._plan is None or self._plan[0] is not config:
            self._plan = config, TensorPlan(config, text)
        return self._plan[1]

    def is_of(self, servable: Servable) -> bool:
        settings = servable.config.text
        return self.servable is servable and (self.settings is settings or self.settings == settings)


class TextVersions:
    """Text models by version, for the event loop's thread."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._entries: dict[ModelId, _Entry] = {}
        self._listening = server.changes.listening(self._drop_old)
        self._listening.__enter__()  # as long as the application, which goes with the server

    async def borrow(self, name: str | None, tasks: Collection[TextTask]) -> TextHandle:
        """Return the model `name`, which may have its owner before it, or for None the only one with one of the
        `tasks`; none: any task.

        Raises NOT_FOUND, UNAVAILABLE, INVALID_ARG for a model that is not of these tasks or takes no texts, INTERNAL
        for files that cannot be used, and UNSUPPORTED without the library.
        """
        if name is None:
            name = await self._only(tasks)
        try:
            handle = self._server.borrow(without_owner(name))
        except ModserveError as error:
            if error.code is not Code.NOT_FOUND:
                raise
            others = await self._names(tasks)
            raise RequestFieldError(
                f"there is no model '{name[:100]}'; {_list_models(others, tasks)}",
                "model",
                MODEL_NOT_FOUND,
                Code.NOT_FOUND,
            ) from None
        try:
            entry = self._entry(handle.servable.id, handle.servable)
            if not entry.text.done():
                await asyncio.shield(entry.text)  # others wait for the same
            text = _value(entry.text.result())
            if tasks and text.task not in tasks:
                others = await self._names(tasks)
                raise RequestFieldError(
                    f"model '{name}' is for the task {text.task.value}, and this call is for {_words(tasks)}; "
                    f"{_list_models(others, tasks)}",
                    "model",
                )
            if entry.tokenizer is None:
                folder = entry.folder
                entry.tokenizer = _reading(lambda: tokenizer.load(folder))
            if not entry.tokenizer.done():
                await asyncio.shield(entry.tokenizer)
            tokens = _value(entry.tokenizer.result())
            if not entry.is_planned:
                await describe(entry.servable)
            return TextHandle(handle.servable.id.name, handle, text, tokens, entry.plan(text))
        except BaseException:
            handle.release()
            raise

    def _entry(self, id: ModelId, front: Servable) -> _Entry:
        """Return the entry of a version that is READY in this turn of the event loop; `front` takes its requests."""
        entry = self._entries.get(id)
        if entry is not None and entry.is_of(front):
            return entry
        servable, folder = self._current(id), self._server.folder(id)
        if servable is None or folder is None:
            raise unavailable(f"model '{id.name}' version {id.version} is being unloaded")
        if entry is None or not entry.is_of(servable):
            entry = self._entries[id] = _Entry(servable, folder)
        return entry

    def _current(self, id: ModelId) -> Servable | None:
        """Return the version itself, which may be behind something else: a routing, or its predecessor."""
        return next((each for each in self._server.ready_models() if each.id == id), None)

    def _drop_old(self) -> None:
        ready = {each.id: each for each in self._server.ready_models()} if self._entries else {}
        for id, entry in list(self._entries.items()):
            if ready.get(id) is not entry.servable:
                del self._entries[id]

    async def _only(self, tasks: Collection[TextTask]) -> str:
        names = await self._names(tasks)
        if len(names) == 1:
            return names[0]
        why = "the request names no model, and " if names else ""
        raise RequestFieldError(why + _list_models(names, tasks), "model", MODEL_NOT_FOUND, Code.NOT_FOUND)

    async def _names(self, tasks: Collection[TextTask]) -> Sequence[str]:
        """Return the names of READY models with one of the tasks, except models with unusable files."""
        names: dict[str, None] = {}
        for servable in self._server.models():
            folder = self._server.folder(servable.id)
            if folder is not None and servable.id.name not in names:
                outcome = await asyncio.shield(self._entry(servable.id, servable).text)
                if isinstance(outcome, TextDescription) and (not tasks or outcome.task in tasks):
                    names[servable.id.name] = None
        return [*names]


def _describe(folder: Path, name: str, settings: TextSettings) -> TextDescription:
    if not description.is_text_model(folder):
        raise no_text_model(name, f"there is no {description.TOKENIZER} beside its file")
    text = description.describe(folder, settings)
    if text is None:
        raise no_text_model(name, "its config.json is that of a model that writes texts")
    return text


def _reading(work: Callable[[], Value]) -> "asyncio.Future[Value | ModserveError]":
    """Run `work` on a thread. A failure becomes a value, since its traceback would hold what holds it."""

    def run() -> Value | ModserveError:
        try:
            return work()
        except ModserveError as error:
            return error.with_traceback(None)

    return offload.in_background(run)


def _value(outcome: Value | ModserveError) -> Value:
    """Return the value that `_reading` has read. Raises its failure."""
    if isinstance(outcome, ModserveError):
        raise ModserveError(outcome.code, outcome.message)  # one of its own for each, since others raise it too
    return outcome


def _words(tasks: Collection[TextTask]) -> str:
    return " or ".join(task.value for task in tasks) or "text"


def _list_models(names: Sequence[str], tasks: Collection[TextTask]) -> str:
    words = _words(tasks)
    return f"models for {words} are: {format_names(names)}" if names else f"there is no model for {words}"
