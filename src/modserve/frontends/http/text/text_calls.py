"""Calls of texts: the body, its model, the tokens of its texts, and their inferences."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, TypeVar, overload
from urllib.parse import parse_qs

import orjson

from modserve.core.configuration.text_settings import TextTask
from modserve.core.errors import invalid
from modserve.core.requests.response import InferenceResponse
from modserve.core.tensors.tensor import Tensor
from modserve.frontends import offload
from modserve.frontends.http.exchange import CompleteRequest
from modserve.frontends.http.infer import CallContext
from modserve.frontends.http.parts import Parts
from modserve.frontends.offload import RequestMemory
from modserve.protocol import limits
from modserve.protocol.compression import Inflater
from modserve.protocol.http.infer_body import check_json_size
from modserve.text import tokenizer
from modserve.text.openai_errors import EMPTY, TOO_LONG, TOO_MANY, RequestFieldError
from modserve.text.pooling import Vectors
from modserve.text.tokenizer import Text, Tokens

from .models import TextHandle, TextVersions

Result = TypeVar("Result")

_INLINE_CHARACTERS: Final = 2048
"""Characters of texts that are tokenized on the event loop: half a millisecond, as for other work in `LoopLimits`."""
_TOKEN_BYTES: Final = 8
"""Bytes of a token; each character of the texts becomes at most one."""
PLACED_TOKEN_BYTES: Final = 200
"""Bytes of a token with its place in the text."""
_NUMBER_BYTES: Final = 20
"""Bytes of each number of a result: its four bytes and its digits."""


class TextOptions:
    """Options for reading the texts of one call. None: as the model's files say."""

    __slots__ = ("keep_end", "prompt_name", "truncate")

    def __init__(self, truncate: bool | None = None, keep_end: bool = False, prompt_name: str | None = None) -> None:
        self.truncate = truncate
        self.keep_end = keep_end
        self.prompt_name = prompt_name


class TextCall:
    """A body that has been read. `close` gives back what it holds."""

    __slots__ = ("_handles", "body", "context", "cost", "memory", "models", "now_ns", "request")

    def __init__(
        self,
        context: CallContext,
        request: CompleteRequest,
        models: TextVersions,
        body: dict[str, Any],
        memory: RequestMemory,
        now_ns: int,
    ) -> None:
        self.context = context
        self.request = request
        self.models = models
        self.body = body
        self.memory = memory
        self.now_ns = now_ns
        self.cost = ""
        """Cost of the inferences, as in `Parts`."""
        self._handles: list[TextHandle] = []

    async def model(self, tasks: Collection[TextTask]) -> TextHandle:
        """Return the model named by the body or the query of the path; otherwise the only one. Raises as `borrow`."""
        name = self.body.get("model")
        if name is None:
            query = parse_qs(self.request.query)
            name = query.get("model", [None])[0]
        if name is not None and not isinstance(name, str):
            raise RequestFieldError("'model' must be a string: the name of a model", "model")
        handle = await self.models.borrow(name, tasks)
        self._handles.append(handle)
        return handle

    async def tokens(
        self, model: TextHandle, texts: Sequence[Text], options: TextOptions, member: str, *, places: bool = False
    ) -> list[Tokens]:
        """Return the tokens of each text with its prompt. `member` has the texts in the body; `places`: as
        `Tokenizer.encode`.

        Raises INVALID_ARG for too many texts, an empty one, one that is too long and must not be cut, and an unknown
        prompt.
        """
        check_count(model, len(texts), member)
        for place, text in enumerate(texts):
            if not any(text):  # of a pair, one may be
                raise RequestFieldError(f"{member}[{place}] is empty", f"{member}[{place}]", EMPTY)
        prompt = model.text.prompt(options.prompt_name)
        if prompt or model.text.lowercase:
            texts = [prepare(text, prompt, model.text.lowercase) for text in texts]
        encode, most = model.tokenizer.encode, model.text.max_length
        characters = sum(map(tokenizer.characters_of, texts))
        if characters <= _INLINE_CHARACTERS:
            tokens = encode(texts, most, keep_end=options.keep_end, places=places)
        else:
            size = PLACED_TOKEN_BYTES if places else _TOKEN_BYTES
            await offload.on_thread(self.memory.take, size * characters)
            tokens = []
            for piece in tokenizer.pieces(texts):
                part = texts[piece]
                tokens += await offload.on_thread(encode, part, most, keep_end=options.keep_end, places=places)
        check_length(model, tokens, options, member)
        return tokens

    async def vectors(
        self,
        model: TextHandle,
        tokens: Sequence[Tokens],
        options: TextOptions,
        normalize: bool,
        dimensions: int | None,
    ) -> list[Vectors]:
        """Return each text's embedding, FP32 [width]. Raises INVALID_ARG for more dimensions than the model's."""
        plan, prompt = model.plan, prepare("", model.text.prompt(options.prompt_name), model.text.lowercase)
        skip = least = 0
        if prompt and not model.text.pools_prompt:
            skip, least = model.tokenizer.prompt_length(prompt), model.tokenizer.prompt_length("")
        width = plan.width
        if dimensions is not None and dimensions > width > 0:
            message = f"'dimensions' is {dimensions}, and the embeddings of model '{model.name}' have {width}"
            raise RequestFieldError(message, "dimensions")
        size = _NUMBER_BYTES * (dimensions or max(width, 1)) * len(tokens)
        if size > self.context.limits.json:
            await offload.on_thread(self.memory.take, size)

        def vector(output: Tensor, text: Tokens) -> Vectors:
            cut = text.cut if options.keep_end else 0  # at the beginning, where the prompt is
            return plan.vector(output, max(least, skip - cut), normalize, dimensions)

        return await self.run(model, tokens, vector)

    async def run(
        self, model: TextHandle, tokens: Sequence[Tokens], finish: Callable[[Tensor, Tokens], Result]
    ) -> list[Result]:
        """Return what `finish` makes of each text's output and tokens, on the event loop. Raises the first failure."""
        plan, output = model.plan, model.plan.output.name
        lengths = [len(each.ids) for each in tokens]
        order = sorted(range(len(tokens)), key=lengths.__getitem__, reverse=True)  # alike lengths share batches
        run = Parts(self.context, self.request, model.servable, None, self.now_ns, (output,))
        inputs = (plan.inputs(tokens[place]) for place in order)

        def read(response: InferenceResponse, place: int) -> Result:
            return finish(response.outputs[output], tokens[order[place]])

        results = await run.all(inputs, read, len(tokens), sum(lengths))
        self.cost = run.cost
        return [result for _, result in sorted(zip(order, results, strict=True), key=itemgetter(0))]

    async def encode(self, content: object, elements: int) -> bytes:
        """Encode a response as JSON; its numpy arrays have this many elements."""
        if elements > self.context.limits.elements:
            return await offload.on_thread(write, content)
        return write(content)

    def close(self) -> None:
        for handle in self._handles:
            handle.close()
        self.memory.release()


def write(content: object) -> bytes:
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


async def begin(context: CallContext, request: CompleteRequest, models: TextVersions) -> TextCall:
    """Read the body of a call. Raises INVALID_ARG if it is no JSON object, or too long."""
    now_ns = time.monotonic_ns()
    memory = RequestMemory(context.server.memory, asyncio.get_running_loop())
    try:
        raw = request.body if request.head.method == b"POST" else b"{}"
        coding, most = request.head.content_encoding, context.max_json
        content = raw if coding is None else offload.inflate(coding, raw, most, context.limits)
        if isinstance(content, Inflater) or len(content) > context.limits.json:
            body = await offload.on_thread(_read, content, most, memory.take)
        else:
            body = _read(content, most)
    except BaseException:
        memory.release()
        raise
    return TextCall(context, request, models, body, memory, now_ns)


def check_count(model: TextHandle, count: int, member: str) -> None:
    """Check the number of texts. Raises INVALID_ARG for none, and for too many."""
    if count == 0:
        raise RequestFieldError(f"'{member}' has no texts", member, EMPTY)
    most = model.text.max_texts
    if count > most:
        message = f"'{member}' has {count} texts, and a request for model '{model.name}' may have {most}"
        raise RequestFieldError(f"{message} (its parameter text.max_texts)", member, TOO_MANY)


def check_length(model: TextHandle, tokens: Sequence[Tokens], options: TextOptions, member: str) -> None:
    """Check a text's length. Raises INVALID_ARG for a text that was cut and must not be."""
    if model.text.truncate if options.truncate is None else options.truncate:
        return
    for place, each in enumerate(tokens):
        if each.cut:
            count, most = len(each.ids) + each.cut, model.text.max_length
            message = f"{member}[{place}] has {count} tokens, and model '{model.name}' takes {most}"
            raise RequestFieldError(f"{message}; shorten it, or let it be cut", f"{member}[{place}]", TOO_LONG)


def usage(tokens: Sequence[Tokens]) -> Mapping[str, int]:
    """Count the tokens that the model sees, as OpenAI does. Cut tokens are reported where there are any."""
    count, cut = sum(len(each.ids) for each in tokens), sum(each.cut for each in tokens)
    return {"prompt_tokens": count, "total_tokens": count, **({"truncated_tokens": cut} if cut else {})}


@overload
def prepare(text: str, prompt: str, lowercase: bool) -> str: ...


@overload
def prepare(text: Text, prompt: str, lowercase: bool) -> Text: ...


def prepare(text: Text, prompt: str, lowercase: bool) -> Text:
    """Return the text as the tokenizer sees it."""
    if isinstance(text, tuple):
        return (text[0].lower(), text[1].lower()) if lowercase else text
    whole = prompt + text
    return whole.lower() if lowercase else whole


def origins(text: str, lowercase: bool) -> Sequence[int]:
    """Return the place in `text` of each character that the tokenizer sees, and of the end: some grow when lowered."""
    if not lowercase or len(text.lower()) == len(text):
        return range(len(text) + 1)
    return [*(place for place, character in enumerate(text) for _ in character.lower()), len(text)]


def span(sources: Sequence[int], offsets: tuple[int, int]) -> tuple[int, int]:
    """Return the offsets of a token by `origins`."""
    start, end = offsets
    return sources[start], sources[end - 1] + 1 if end > start else sources[start]


def _read(content: bytes | Inflater, most: int, reserve: Callable[[int], None] | None = None) -> dict[str, Any]:
    if isinstance(content, Inflater):
        content = content.read_all() if reserve is None else content.read_all(reserve)
    check_json_size(len(content), most)
    if reserve is not None:
        reserve(limits.estimate_size(content))
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise invalid(
            f"the body is not JSON in UTF-8: {error.msg}, line {error.lineno}, column {error.colno}"
        ) from None
    if not isinstance(body, dict):
        raise invalid("the body must be a JSON object")
    return body
