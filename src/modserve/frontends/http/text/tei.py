"""The calls of Hugging Face's text-embeddings-inference: ``/embed``, ``/rerank``, ``/predict``, ``/similarity``,
``/tokenize``, ``/decode`` and ``/info``, and ``/``, which is the one of the first three that the model is for."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from modserve.core.configuration.text_settings import TextTask
from modserve.frontends import offload
from modserve.text.openai_errors import EMPTY, RequestFieldError
from modserve.text.outputs import label_of, label_scores, scores
from modserve.text.tokenizer import Text, Tokenizer, Tokens

from . import fields
from .rerank import rank_texts, rerank
from .text_calls import PLACED_TOKEN_BYTES, TextCall, check_count, origins, prepare, span

_CLASSIFIERS: Final = (TextTask.CLASSIFICATION, TextTask.RERANK, TextTask.TOKEN_CLASSIFICATION)
_OUTSIDE: Final = "O"
"""The label of tokens that are part of nothing."""


async def embed(call: TextCall) -> bytes:
    """Return the embedding of each text in ``inputs``."""
    texts, _ = fields.one_or_more(call.body, "inputs")
    normalize, options = fields.flag(call.body, "normalize", True), fields.options(call.body)
    dimensions = fields.whole_number(call.body, "dimensions")
    model = await call.model([TextTask.EMBEDDING])
    tokens = await call.tokens(model, texts, options, "inputs")
    vectors = await call.vectors(model, tokens, options, normalize, dimensions)
    return await call.encode(vectors, sum(map(len, vectors)))


async def rank(call: TextCall) -> bytes:
    """Return the texts by their relevance to the query, the most relevant first.

    With ``documents`` in their place, as other servers have this path, it is the call of `rerank`.
    """
    body = call.body
    if body.get("documents") is not None and body.get("texts") is None:
        return await rerank(call)
    query, texts = fields.require_text(body, "query"), fields.texts(body, "texts")
    raw, with_text = fields.flag(body, "raw_scores", False), fields.flag(body, "return_text", False)
    model = await call.model([TextTask.RERANK])
    by_place, _ = await rank_texts(call, model, query, texts, fields.options(body), "texts", "none" if raw else None)
    ranks = [
        {"index": place, **({"text": texts[place]} if with_text else {}), "score": score} for place, score in by_place
    ]
    return await call.encode(ranks, len(ranks))


async def predict(call: TextCall) -> bytes:
    """Return the labels of each text with their scores, the likeliest first; of tokens, only meaningful labels."""
    texts, several = fields.sequences(call.body, "inputs")
    raw, options = fields.flag(call.body, "raw_scores", False), fields.options(call.body)
    model = await call.model(_CLASSIFIERS)
    activation = "none" if raw else model.text.activation
    of_tokens = model.text.task is TextTask.TOKEN_CLASSIFICATION
    tokens = await call.tokens(model, texts, options, "inputs", places=of_tokens)
    plan, labels = model.plan, model.text.labels
    outputs = await call.run(model, tokens, lambda output, _: scores(plan.result(output), activation))
    if of_tokens:
        prompt = model.text.prompt(options.prompt_name)
        predictions = await offload.on_thread(_entities, texts, prompt, model.text.lowercase, tokens, outputs, labels)
    else:
        predictions = [label_scores(values, labels) for values in outputs]
    return await call.encode(predictions if several else predictions[0], sum(values.size for values in outputs))


async def similarity(call: TextCall) -> bytes:
    """Return the cosine of the angle between the embedding of a text and that of each of the others."""
    inputs, parameters = call.body.get("inputs"), call.body.get("parameters") or {}
    if not isinstance(inputs, dict):
        raise RequestFieldError("'inputs' must be an object with 'source_sentence' and 'sentences'", "inputs")
    if not isinstance(parameters, dict):
        raise RequestFieldError("'parameters' must be an object", "parameters")
    source, sentences = fields.require_text(inputs, "source_sentence"), fields.texts(inputs, "sentences")
    options = fields.options(parameters)
    model = await call.model([TextTask.EMBEDDING])
    check_count(model, len(sentences), "sentences")
    if not source:
        raise RequestFieldError("'source_sentence' is an empty string", "source_sentence", EMPTY)
    texts = [*sentences, source]
    tokens = await call.tokens(model, texts, options, "sentences")
    *vectors, own = await call.vectors(model, tokens, options, True, None)
    return await call.encode([float(vector @ own) for vector in vectors], len(vectors))


async def run(call: TextCall) -> bytes:
    """Do the model's task: the embeddings of ``embed``, the labels of ``predict``, or the ranks of ``rerank``."""
    model = await call.model(())
    return await _WORK[model.text.task](call)


_WORK: Final[Mapping[TextTask, Callable[[TextCall], Awaitable[bytes]]]] = {
    TextTask.EMBEDDING: embed,
    TextTask.RERANK: rank,
    TextTask.CLASSIFICATION: predict,
    TextTask.TOKEN_CLASSIFICATION: predict,
}


async def tokenize(call: TextCall) -> bytes:
    """Return the tokens of each text, with their places in it."""
    texts, _ = fields.one_or_more(call.body, "inputs")
    special, name = fields.flag(call.body, "add_special_tokens", True), fields.text(call.body, "prompt_name")
    model = await call.model(())
    check_count(model, len(texts), "inputs")
    prompt = model.text.prompt(name)
    wholes = [prompt + text for text in texts]
    return await offload.on_thread(_tokenize, model.tokenizer, wholes, model.text.lowercase, special, call)


async def decode(call: TextCall) -> bytes:
    """Return the text of each list of tokens in ``ids``."""
    ids, skip = call.body.get("ids"), fields.flag(call.body, "skip_special_tokens", True)
    lists = [ids] if isinstance(ids, list) and ids and not isinstance(ids[0], list) else ids
    if not isinstance(lists, list) or not all(_is_ids(each) for each in lists):
        raise RequestFieldError("'ids' must be a list of tokens, or a list of such lists", "ids")
    model = await call.model(())
    check_count(model, len(lists), "ids")
    for each in lists:
        if each and not 0 <= min(each) <= max(each) < model.tokenizer.size:
            raise RequestFieldError(f"'ids' has a token that is none of 0 to {model.tokenizer.size - 1}", "ids")
    decoded = await offload.on_thread(lambda: [model.tokenizer.decode(each, skip) for each in lists])
    return await call.encode(decoded, 0)


async def info(call: TextCall) -> bytes:
    """Return a description of the model and of its input."""
    model = await call.model(())
    text, config = model.text, model.servable.config
    by_number = {str(number): label for number, label in enumerate(text.labels)}
    classes = {"id2label": by_number, "label2id": {label: number for number, label in enumerate(text.labels)}}
    kinds: dict[TextTask, dict[str, Any]] = {
        TextTask.EMBEDDING: {"embedding": {"pooling": ",".join(text.pooling) or "none"}},
        TextTask.RERANK: {"reranker": classes},
        TextTask.CLASSIFICATION: {"classifier": classes},
        TextTask.TOKEN_CLASSIFICATION: {"token_classifier": classes},
    }
    content = {
        "model_id": model.name,
        "model_sha": None,
        "model_dtype": "float32",
        "model_type": kinds[text.task],
        "max_input_length": text.max_length,
        "max_client_batch_size": text.max_texts,
        "max_batch_requests": config.max_batch_size or None,
        "auto_truncate": text.truncate,
        "prompts": dict(text.prompts or {}),
        "version": call.context.server.version,
    }
    return await call.encode(content, 0)


def _entities(
    texts: Sequence[Text],
    prompt: str,
    lowercase: bool,
    tokens: Sequence[Tokens],
    outputs: Sequence[Any],
    labels: Sequence[str],
) -> list[list[dict[str, Any]]]:
    """Return the tokens with a label that means something, as transformers' pipeline writes them without aggregation.

    Tokens of a prompt are no part of a text. Places of a pair are in the text that has the token.
    """
    entities = []
    for text, each, values in zip(texts, tokens, outputs, strict=True):
        parts, before = (text, 0) if isinstance(text, tuple) else ((prompt + text,), len(prompt))
        sources = [origins(part, lowercase) for part in parts]
        best, row = values.argmax(axis=-1).tolist(), []
        for index, place in enumerate(each.places or ()):
            label = label_of(labels, best[index])
            if place.part is None or label == _OUTSIDE:
                continue
            start, end = span(sources[place.part], place.offsets)
            if end > before or not before:
                row.append(
                    {
                        "entity": label,
                        "score": float(values[index, best[index]]),
                        "index": index,
                        "word": place.token,
                        "start": max(0, start - before),
                        "end": end - before,
                    }
                )
        entities.append(row)
    return entities


def _tokenize(tokenizer: Tokenizer, texts: Sequence[str], lowercase: bool, special: bool, call: TextCall) -> bytes:
    import orjson

    call.memory.take(PLACED_TOKEN_BYTES * sum(map(len, texts)))
    lists = []
    for text in texts:
        encoding = tokenizer.pieces(prepare(text, "", lowercase), special)
        source = origins(text, lowercase)
        places = [span(source, offsets) for offsets in encoding.offsets]
        rows = zip(encoding.ids, encoding.tokens, encoding.special_tokens_mask, places, strict=True)
        lists.append([_token(text, *row) for row in rows])
    return orjson.dumps(lists)


def _token(text: str, id: int, token: str, special: int, place: tuple[int, int]) -> dict[str, Any]:
    start, stop = place
    ends = {"start": None, "stop": None} if special else {"start": start, "stop": stop}
    return {"id": id, "text": token if special else text[start:stop], "special": bool(special), **ends}


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, int) and not isinstance(each, bool) for each in value)
