"""Text generation of one request: each choice is a call of the model, and their outcomes form one HTTP response."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

from modserve.core.errors import ModserveError
from modserve.core.requests.request import InferenceRequest
from modserve.core.requests.response import InferenceResponse, Outcome
from modserve.core.requests.shared_permit import SharedPermit
from modserve.core.tensors.tensor import Tensor
from modserve.frontends import offload
from modserve.frontends.http.exchange import (
    CompleteRequest,
    ResponseStream,
    StreamedCall,
    WholeResponse,
    response_stream,
)
from modserve.frontends.http.infer import CallContext
from modserve.frontends.http.streams import HttpStream, Streams
from modserve.protocol import failures, header_forwarding
from modserve.protocol.http import deadlines
from modserve.protocol.http.framing import Framing
from modserve.protocol.response_form import ResponseForm
from modserve.settings import LoopLimits
from modserve.text.chat.choice import TextChoice, Usage, usage_of
from modserve.text.chat.contract import Contract, Piece, piece_of
from modserve.text.chat.counting import PART_CHARACTERS, count_prompts
from modserve.text.chat.requests import TextRequest
from modserve.text.chat.responses import CollectedChoice, OpenAIWriter
from modserve.text.chat.tools import ToolChoice
from modserve.text.tokenizer import Tokenizer


class CallGroup:
    """Several calls as one `StreamedCall`: outcomes in order of arrival; `current` is the index of their call.

    `ended`: the last outcome of that call was taken. A failure of one call ends all.
    """

    def __init__(self, calls: Sequence[HttpStream]) -> None:
        self._calls = calls
        self._order: deque[int] = deque()
        """Index of the call of each arrived outcome."""
        self._open = len(calls)
        self._arrival: Callable[[], None] | None = None
        self._waiting: asyncio.Future[None] | None = None
        self.current = 0
        self.ended = False
        for index, call in enumerate(calls):
            call.listen(partial(self._came, index))

    @property
    def limits(self) -> LoopLimits:
        return self._calls[0].limits

    @property
    def response_form(self) -> ResponseForm:
        return self._calls[0].response_form

    @property
    def ready(self) -> bool:
        return bool(self._order)

    def listen(self, arrival: Callable[[], None]) -> None:
        self._arrival = arrival
        for _ in range(len(self._order)):
            arrival()

    def take(self) -> tuple[Outcome, bool]:
        """Return the next outcome of any call, and whether it is the last of all."""
        self.current = self._order.popleft()
        outcome, self.ended = self._calls[self.current].take()
        self._open -= self.ended
        return outcome, not self._open or (self.ended and isinstance(outcome, ModserveError))

    def acknowledge(self) -> None:
        self._calls[self.current].acknowledge()

    async def next(self) -> tuple[Outcome, bool]:
        self.acknowledge()
        while not self._order:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self.take()

    def _came(self, index: int) -> None:
        self._order.append(index)
        if self._arrival is not None:
            self._arrival()
        elif self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def on_part_sent(self) -> None:
        self._calls[self.current].on_part_sent()

    def record_failure(self, error: ModserveError, status: int | str) -> None:
        self._calls[self.current].record_failure(error, status)

    def on_sending(self) -> None:
        self._calls[self.current].on_sending()

    def on_sent(self) -> None:
        self._calls[self.current].on_sent()

    def release(self) -> None:
        for call in self._calls:
            call.release()

    def close(self) -> None:
        self._arrival = None  # breaks a reference cycle
        for call in self._calls:
            call.close()


_FRAMING = Framing("text/event-stream", "text/event-stream; charset=utf-8", b"", b"")
"""Framing of complete events, sent as they are."""


class TextGeneration:
    """The submitted calls of a request, and their choices. `per_prompt` consecutive calls share a prompt."""

    __slots__ = ("_per_prompt", "calls", "choices", "contract")

    def __init__(
        self, contract: Contract, calls: Sequence[HttpStream], choices: Sequence[TextChoice], per_prompt: int
    ) -> None:
        self.contract = contract
        self.calls = calls
        self.choices = choices
        self._per_prompt = per_prompt
        calls[0].on_close = self.count_tokens  # by either way of ending it

    @property
    def usage(self) -> Usage:
        return usage_of(self.choices, self._per_prompt)

    def count_tokens(self) -> None:
        """Charge the tenant, if any, for the tokens read and written so far. Only the first call has an effect."""
        first = self.calls[0]
        counted = first.on_close is None
        first.on_close = None
        if first.tenant is not None and not counted:
            for call, choice in zip(self.calls, self.choices, strict=True):
                self._read_rest(call, choice)
            counts = [count for each in self.choices for count in (each.input_tokens, each.written)]
            first.server.quotas.spend_tokens(first.tenant, sum(count or 0 for count in counts))

    def _read_rest(self, call: HttpStream, choice: TextChoice) -> None:
        """Read the model's output that the client did not wait for."""
        while call.ready and not choice.over:
            outcome, final = call.take()
            if isinstance(outcome, InferenceResponse):
                choice.add(piece_of(self.contract, outcome), final)

    @property
    def counts_long(self) -> bool:
        """True if computing `usage` takes long enough for a thread."""
        return any(count.uncounted > PART_CHARACTERS for choice in self.choices for count in choice.counts)

    def close(self) -> None:
        for call in self.calls:
            call.close()


async def submit(
    streams: Streams,
    request: CompleteRequest,
    first: HttpStream,
    contract: Contract,
    text: TextRequest,
    prompts: Sequence[str],
    tokenizer: Tokenizer | None,
    tools: ToolChoice | None = None,
    templated: bool = False,
    close: str = "",
) -> TextGeneration:
    """Submit a call for each choice of each prompt. `first` is the already begun call of the first choice.

    `tokenizer`: counts tokens for a model that does not. `tools`: None unless the request is a chat. `templated`: the
    prompts contain their special tokens. `close`: end mark of the reasoning block that the prompt opens.

    Raises the reason if a call is not accepted; all calls but the first are closed then.
    """
    stream = text.stream and first.servable.config.decoupled
    head = request.head
    ends_ns = deadlines.deadline_ns(head.timeouts, first.now_ns)
    choices = [TextChoice(index, text, tools, tokenizer, close) for index in range(len(prompts) * text.choices)]
    if max(map(len, prompts)) > first.limits.json:
        inputs = await offload.on_thread(_inputs, contract, text, prompts, stream)
    else:
        inputs = _inputs(contract, text, prompts, stream)
    calls = [first]
    try:
        for _ in choices[1:]:
            calls.append(streams.begin(request.note, head.trace_headers, text.model, None))
        requests = [
            header_forwarding.with_headers(
                InferenceRequest(text.model, tensors, (), None, deadline_ns=ends_ns), head.forwarded
            )
            for tensors in inputs
        ]
        _submit_all(calls, requests)
        if tokenizer is not None:
            await _count_prompts(tokenizer, prompts, choices[:: text.choices], not templated)
    except BaseException:
        for call in calls[1:]:
            call.close()
        raise
    return TextGeneration(contract, calls, choices, text.choices)


def _submit_all(calls: Sequence[HttpStream], requests: Sequence[InferenceRequest]) -> None:
    """Submit a request by each call. A tenant pays for one request, with a row for each call."""
    first, permit = calls[0], None
    with ExitStack() as submission:
        if len(calls) > 1 and first.server.quotas.limits(first.tenant):
            requests[0].tenant = first.tenant
            permit = SharedPermit(submission.enter_context(first.server.quotas.submission(requests[0], len(calls))))
            submission.callback(permit.release)
        for call, request in zip(calls, requests, strict=True):
            call.permit = permit
            call.submit_stream(request)


async def _count_prompts(
    tokenizer: Tokenizer, prompts: Sequence[str], choices: Sequence[TextChoice], special: bool
) -> None:
    """Count the prompts' tokens while the model runs. `choices`: the first choice of each prompt."""
    if sum(map(len, prompts)) > PART_CHARACTERS:
        counts = await offload.on_thread(count_prompts, tokenizer, prompts, special)
    else:
        counts = count_prompts(tokenizer, prompts, special)
    for count, choice in zip(counts, choices, strict=True):
        choice.input_tokens = count


def _inputs(contract: Contract, text: TextRequest, prompts: Sequence[str], stream: bool) -> list[dict[str, Tensor]]:
    """Return the tensors of each choice of each prompt. The choices of a prompt have consecutive seeds."""
    inputs = []
    for prompt in prompts:
        for variant in range(text.choices):
            sampling, seed = text.sampling, text.sampling.get("seed")
            if variant and isinstance(seed, int):
                sampling = {**sampling, "seed": seed + variant}
            inputs.append(contract.inputs(prompt, stream, sampling, text.logprobs is not None))
    return inputs


async def whole_response(context: CallContext, generation: TextGeneration, writer: OpenAIWriter) -> WholeResponse:
    """Return the complete response. Raises the first failure."""
    try:
        wholes = await _collect(generation)
        long = sum(whole.size for whole in wholes) > context.limits.json or generation.counts_long
        write = partial(_encode_whole, generation, writer, wholes)
        body = await offload.on_thread(write) if long else write()
    finally:
        generation.close()
    cost = generation.calls[-1].cost if context.server_timing else ""
    return WholeResponse(body, headers=(("Server-Timing", cost),) if cost else ())


def _encode_whole(generation: TextGeneration, writer: OpenAIWriter, wholes: Sequence[CollectedChoice]) -> bytes:
    return writer.whole(wholes, generation.usage)


async def _collect(generation: TextGeneration) -> list[CollectedChoice]:
    """Return the choices in order; their calls run concurrently.

    Received output counts as server memory, since a model need not end. Raises the first failure, which may be
    `MemoryExhaustedError`.
    """
    wholes = [CollectedChoice(choice) for choice in generation.choices]
    for call, whole in zip(generation.calls, wholes, strict=True):
        call.keeps_outcomes = True
        final = False
        while not final and not whole.choice.over:
            outcome, final = await call.next()
            if isinstance(outcome, ModserveError):
                raise outcome
            piece = Piece(b"") if outcome is None else piece_of(generation.contract, outcome)
            whole.add(whole.choice.add(piece, final))
    return wholes


async def stream_response(generation: TextGeneration, writer: OpenAIWriter) -> ResponseStream:
    """Return the response as events. Raises a failure before the first event."""
    group = CallGroup(generation.calls) if len(generation.calls) > 1 else None
    call: StreamedCall = generation.calls[0] if group is None else group
    for each in generation.calls:
        each.keeps_outcomes = writer.keeps_text
    events = _Events(generation, writer, group)
    response = await response_stream(call, _FRAMING, events.of)
    if response.first.error is not None:
        call.close()
        raise response.first.error
    return response


class _Events:
    """Events of a stream, from the outcomes of a `group` of calls, or of a single call."""

    def __init__(self, generation: TextGeneration, writer: OpenAIWriter, group: CallGroup | None) -> None:
        self._generation = generation
        self._writer = writer
        self._group = group
        self._failed = False

    def of(self, outcome: Outcome, final: bool) -> bytes:
        """Return the events for an outcome."""
        generation, writer, group = self._generation, self._writer, self._group
        if self._failed:
            return b""  # a stream ends with its first failure
        if isinstance(outcome, ModserveError):
            self._failed = True
            generation.count_tokens()
            for each in generation.calls:
                each.cut()
            return writer.failure(outcome, failures.spelling(outcome).http, failures.public_message(outcome))
        index, ended = (group.current, group.ended) if group is not None else (0, final)
        choice = generation.choices[index]
        piece = Piece(b"") if outcome is None else piece_of(generation.contract, outcome)
        events = writer.delta(choice, choice.add(piece, ended))
        for count in choice.counts:
            count.advance()
        if choice.over and not ended:
            generation.calls[index].cut()
        if ended:
            events += writer.end(choice)
        if final:
            generation.count_tokens()
            events += writer.finish(generation.choices, generation.usage)
        return events
