"""Requests to vLLM's asynchronous engine, which runs in processes of its own, and responses as tokens come.

An event loop on a thread has a task for each request; requests come from the thread of the model's ``execute``. When
the engine has died, the process ends: all requests fail, and the server starts another one.
"""

import asyncio
import itertools
import os
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from ..contract import GenerationCall, Replies, RequestError
from ..figures import Figures, clock
from ..generation import Generation
from .output import VllmOutput
from .sampling import SamplingReader

_EXIT_STATUS = 70


class VllmEngine:
    """Implementation of `contract.GenerationEngineApi`. `llm` is vLLM's AsyncLLM, on the event loop `loop`."""

    def __init__(
        self,
        llm: Any,
        loop: asyncio.AbstractEventLoop,
        sampling: SamplingReader,
        adapters: "Adapters",
        images: Callable[[Sequence[bytes]], Sequence[Any]],
        errors: "Errors",
        figures: Figures,
        replies: Replies,
        log: Callable[[str], None],
        *,
        checks_health: bool = False,
    ) -> None:
        self._llm = llm
        self._loop = loop
        self._sampling = sampling
        self._adapters = adapters
        self._images = images
        self._errors = errors
        self._figures = figures
        self._replies = replies
        self._log = log
        self._checks_health = checks_health
        self.room = int(llm.vllm_config.scheduler_config.max_num_seqs)
        self._bos = getattr(llm.tokenizer, "bos_token", None) or ""
        self._numbers = itertools.count(1)
        self._running: dict[Generation[VllmOutput], asyncio.Task[None]] = {}
        self._silent: set[Generation[VllmOutput]] = set()
        """Generations without any output yet."""
        self._looks = False
        self._count = 0
        """Outputs that are not finished."""
        self._changed = threading.Condition()
        handler = llm.output_handler
        if handler is not None:  # the task of vLLM's that ends with the engine
            handler.add_done_callback(lambda _: self._on_engine_end())
        self._closing = False

    def close(self) -> None:
        """End the engine when no request runs any more."""
        with self._changed:
            while self._count:
                self._changed.wait()
        asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result()

    async def _shut_down(self) -> None:
        self._closing = True
        self._llm.shutdown()

    # On the thread of execute()

    def begin(self, call: GenerationCall) -> None:
        if call.request.is_cancelled():  # the first question is answered by the server, later ones cost little
            self._replies.end(call.sender)
            return
        sampling, name = self._sampling.read(call.sampling, strict=call.strict)
        adapter = self._adapters.request(name)
        prompt: dict[str, Any] = {"prompt": call.text}
        if call.images:
            prompt["multi_modal_data"] = {"image": self._images(call.images)}
        options: dict[str, Any] = {} if adapter is None else {"lora_request": adapter}
        if self._bos and call.text.startswith(self._bos):  # as chat templates begin: one is enough
            options["tokenization_kwargs"] = {"add_special_tokens": False}
        generation = Generation(call, [VllmOutput() for _ in range(sampling.n)], 0)
        with self._changed:
            self._count += sampling.n
        self._loop.call_soon_threadsafe(self._start, generation, prompt, sampling, options)

    def turn(self) -> bool:
        """Return False: the event loop does all the work."""
        return False

    # On the event loop

    def _start(
        self, generation: Generation[VllmOutput], prompt: Mapping[str, Any], sampling: Any, options: Mapping[str, Any]
    ) -> None:
        stream = self._llm.generate(prompt, sampling, f"modserve-{next(self._numbers)}", **options)
        self._silent.add(generation)
        task = self._loop.create_task(self._serve(generation, stream))
        self._running[generation] = task
        task.add_done_callback(lambda _: self._forget(generation))

    def _forget(self, generation: Generation[VllmOutput]) -> None:
        del self._running[generation]
        self._silent.discard(generation)
        self._figures.report(clock())
        with self._changed:
            self._count -= len(generation.outputs)
            self._changed.notify_all()

    async def _serve(self, generation: Generation[VllmOutput], stream: AsyncGenerator[Any, None]) -> None:
        sender = generation.call.sender
        try:
            if self._checks_health:
                await self._llm.check_health()
            async with aclosing(stream):  # closing it before its end aborts the request
                async for result in stream:
                    self._add(generation, result)
                    if generation.finished or not generation.call.request.is_cancelled():
                        continue
                    self._replies.fail(sender, "CANCELLED", "the request was cancelled")
                    return
        except asyncio.CancelledError:
            self._replies.fail(sender, "CANCELLED", "the request was cancelled")
        except Exception as error:
            if self._errors.is_dead(error):
                self._on_engine_end()
            code, message = self._errors.describe(error)
            self._replies.fail(sender, code, message)

    def _add(self, generation: Generation[VllmOutput], result: Any) -> None:
        at, call, figures = clock(), generation.call, self._figures
        if generation in self._silent:
            self._silent.discard(generation)
            generation.prompt_length = len(result.prompt_token_ids or ())
            figures.count("prompt_tokens_total", generation.prompt_length)
        for news in result.outputs:
            output = generation.outputs[news.index]
            count = output.add(news)
            if count:
                if output.last_at:
                    figures.next_tokens((at - output.last_at) / count)
                else:
                    figures.first_token(at - call.at)
                figures.count("generation_tokens_total", count)
                output.last_at = at
            if news.finish_reason is not None:
                figures.count_end(output.reason)
        if generation.finished or figures.is_due(at):
            figures.report(at)
        if generation.is_due:
            self._replies.send(call.sender, generation.tensors(), generation.finished)
            if generation.finished:
                figures.observe("e2e_request_latency_seconds", at - call.at)
        if self._silent and not self._looks:
            self._looks = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        """Look once in a step for cancelled requests that vLLM has not begun."""
        self._looks = False
        for generation in self._silent:
            if generation.call.request.is_cancelled():
                self._running[generation].cancel()

    def _on_engine_end(self) -> None:
        """End the process after the engine has died, so that the server fails all requests and starts another one.

        If requests failed here instead, the server could still send further ones here.
        """
        if not self._closing:
            self._log("vLLM's engine has died, and its process ends")
            os._exit(_EXIT_STATUS)


class Adapters:
    """The LoRA adapters that requests may choose by name: `folders` is empty unless they are enabled.

    ``make(name, number, folder)`` makes vLLM's LoRARequest.
    """

    def __init__(self, enabled: bool, folders: Mapping[str, str], make: Callable[[str, int, str], Any]) -> None:
        self._enabled = enabled
        self._requests = {
            name: make(name, number, folder) for number, (name, folder) in enumerate(folders.items(), start=1)
        }

    def request(self, name: str | None) -> Any:
        """Return the LoRA request of an adapter. Raises RequestError, with the words of Triton's backend."""
        if name is None:
            return None
        if not self._enabled:
            raise RequestError("LoRA feature is not enabled.")
        if name not in self._requests:
            raise RequestError(f"LoRA {name} is not supported, we currently support {list(self._requests)}")
        return self._requests[name]


class Errors:
    """Meaning of vLLM's exceptions: `dead` for an engine that is gone, `client` for faults of a request, and `full` for
    a queue without room.
    """

    def __init__(self, dead: tuple[type, ...], client: tuple[type, ...], full: tuple[type, ...]) -> None:
        self._dead = dead
        self._client = client
        self._full = full

    def is_dead(self, error: BaseException) -> bool:
        return isinstance(error, self._dead)

    def describe(self, error: BaseException) -> tuple[str, str]:
        """Return code and message."""
        cause = error.__cause__ or error  # vLLM wraps what it does not expect, without its text
        message = str(cause) or type(cause).__name__
        if isinstance(cause, self._full):
            return "UNAVAILABLE", message
        if isinstance(cause, self._client):
            return "INVALID_ARG", message
        return "INTERNAL", f"Error generating stream: {message}"
