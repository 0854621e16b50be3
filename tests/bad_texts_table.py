# ruff: noqa: E501
"""Calls of texts that are wrong, or nearly so: what is sent, and the status and the error of the answer.

The unit suite sends them all to a server in its own process (`test_bad_text_calls`), and some to a real one
(`tests/e2e/test_bad_texts.py`). A parser's own test has what is not here.
"""

import json
from dataclasses import dataclass
from typing import Any

EMBEDDINGS, RERANK = "/v1/embeddings", "/v1/rerank"
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
OPENAI_CALLS = (EMBEDDINGS, RERANK, "/v2/rerank", CHAT, COMPLETIONS, RESPONSES)
TEI_CALLS = ("/embed", "/rerank", "/predict", "/similarity", "/tokenize", "/decode")


@dataclass(frozen=True)
class Row:
    """`message` is that of the error. `param` and `code` are OpenAI's; for TEI's calls, `code` is the type."""

    path: str
    body: dict[str, Any] | bytes
    message: str
    param: str | None = None
    code: str | None = None
    status: int = 400

    @property
    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


BODIES: dict[str, bytes] = {
    "no body": b"",
    "half a body": b'{"model": "minilm", "input": ["a"',
    "an array": b'["a"]',
    "a text": b'"a"',
    "null": b"null",
    "a number that is none": b'{"model": "minilm", "dimensions": NaN}',
    "bytes that are no UTF-8": b'{"model": "speaker", "input": "\xff\xfe", "prompt": "\xff"}',
    "half of a surrogate pair in UTF-8": b'{"model": "speaker", "input": "\xed\xa0\x80"}',
    "an escaped lone surrogate": rb'{"model": "minilm", "input": "\ud800", "inputs": "\udfff"}',
    "brackets without end": b"[" * 100_000,
    "objects without end": b'{"a":' * 100_000,
}
"""Wrong for every call."""


def say(content: Any = "a", **more: Any) -> dict[str, Any]:
    return {"model": "speaker", "messages": [{"role": "user", "content": content}], **more}


def embed(input: Any, **more: Any) -> dict[str, Any]:
    return {"model": "minilm", "input": input, **more}


def rank(documents: Any, query: Any = "a", **more: Any) -> dict[str, Any]:
    return {"model": "ranker", "query": query, "documents": documents, **more}


def prompt(value: Any, **more: Any) -> dict[str, Any]:
    return {"model": "speaker", "prompt": value, **more}


def respond(value: Any, **more: Any) -> dict[str, Any]:
    return {"model": "speaker", "input": value, **more}


SCHEMA = {"type": "json_schema", "json_schema": {"name": "x"}}
CALL = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": 1}}]}

ROWS: dict[str, Row] = {
    # Embeddings
    "embeddings: nothing to embed": Row(EMBEDDINGS, {"model": "minilm"},
        "'input' is missing: a string, a list of strings, a list of tokens, or a list of lists of tokens", "input"),
    "embeddings: no tokens": Row(EMBEDDINGS, embed([[]]), "'input[0]' has no tokens", "input[0]", "empty_input"),
    "embeddings: a number": Row(EMBEDDINGS, embed(1.5),
        "'input' has another type: a string, a list of strings, a list of tokens, or a list of lists of tokens",
        "input"),
    "embeddings: an object": Row(EMBEDDINGS, embed({"text": "a"}),
        "'input' has another type: a string, a list of strings, a list of tokens, or a list of lists of tokens",
        "input"),
    "embeddings: texts and tokens": Row(EMBEDDINGS, embed(["a", 1]),
        "'input' must be a string, a list of strings, a list of tokens, or a list of lists of tokens", "input"),
    "embeddings: nested too deep": Row(EMBEDDINGS, embed([[["a"]]]),
        "'input[0]' must be a string, a list of strings, a list of tokens, or a list of lists of tokens", "input[0]"),
    "embeddings: a token beyond the vocabulary": Row(EMBEDDINGS, embed([1, 18, 2]),
        "'input': token 1 is 18, and the model's tokens are 0 to 17", "input"),
    "embeddings: a token below it": Row(EMBEDDINGS, embed([[1], [-1]]),
        "'input[1]': token 0 is -1, and the model's tokens are 0 to 17", "input[1]"),
    "embeddings: a token of 70 bits": Row(EMBEDDINGS, embed([1 << 70]),
        "'input' must be a string, a list of strings, a list of tokens, or a list of lists of tokens", "input"),
    "embeddings: half a token": Row(EMBEDDINGS, embed([1, 0.5]),
        "'input' must be a string, a list of strings, a list of tokens, or a list of lists of tokens", "input"),
    "embeddings: 100,000 texts": Row(EMBEDDINGS, embed(["a"] * 100_000),
        "'input' has 100000 texts, and a request for model 'minilm' may have 2048 (its parameter text.max_texts)",
        "input", "too_many_inputs"),
    "embeddings: 100,000 lists of tokens": Row(EMBEDDINGS, embed([[1]] * 100_000),
        "'input' has 100000 texts, and a request for model 'minilm' may have 2048 (its parameter text.max_texts)",
        "input", "too_many_inputs"),
    "embeddings: more dimensions than there are": Row(EMBEDDINGS, embed("a", dimensions=385),
        "'dimensions' is 385, and the embeddings of model 'minilm' have 384", "dimensions"),
    "embeddings: dimensions as a text": Row(EMBEDDINGS, embed("a", dimensions="2"),
        "'dimensions' must be a whole number of 1 or more", "dimensions"),
    "embeddings: an encoding": Row(EMBEDDINGS, embed("a", encoding_format="int8"),
        "'encoding_format' must be one of float, base64", "encoding_format"),
    "embeddings: too long": Row(EMBEDDINGS, embed(["a", "b " * 999], truncate=False),
        "input[1] has 1001 tokens, and model 'minilm' takes 256; shorten it, or let it be cut",
        "input[1]", "context_length_exceeded"),
    "embeddings: a prompt that is not there": Row(EMBEDDINGS, embed("a", prompt_name="x"),
        "the model has no prompt 'x'; its prompts are: none", "prompt_name"),
    "embeddings: a model of another type": Row(EMBEDDINGS, embed("a", model=["minilm"]),
        "'model' must be a string: the name of a model", "model"),
    "embeddings: an unknown model": Row(EMBEDDINGS, embed("a", model="nothing"),
        "there is no model 'nothing'; models for embedding are: 'minilm'", "model", "model_not_found", status=404),
    "embeddings: a model for another task": Row(EMBEDDINGS, embed("a", model="ranker"),
        "model 'ranker' is for the task rerank, and this call is for embedding; models for embedding are: 'minilm'",
        "model"),
    "embeddings: a model that takes no texts": Row(EMBEDDINGS, embed("a", model="add"),
        "model 'add' takes no texts: there is no tokenizer.json beside its file"),
    # Documents
    "rerank: no query": Row(RERANK, {"model": "ranker", "documents": ["a"]}, "'query' is missing: a string", "query"),
    "rerank: an empty query": Row(RERANK, rank(["a"], ""), "'query' is an empty string", "query", "empty_input"),
    "rerank: a query of another type": Row(RERANK, rank(["a"], ["a"]), "'query' must be a string", "query"),
    "rerank: no documents": Row(RERANK, rank([]), "'documents' has no texts", "documents", "empty_input"),
    "rerank: documents of another type": Row(RERANK, rank("a"),
        "'documents' must be a list of strings, or of objects with a member 'text'", "documents"),
    "rerank: a document of another type": Row(RERANK, rank(["a", 3]),
        "'documents[1]' must be a string", "documents[1]"),
    "rerank: a document without a text": Row(RERANK, rank([{"title": "a"}]),
        "'documents[0]' must be a string", "documents[0]"),
    "rerank: too many documents": Row(RERANK, rank(["a"] * 2049),
        "'documents' has 2049 texts, and a request for model 'ranker' may have 2048 (its parameter text.max_texts)",
        "documents", "too_many_inputs"),
    "rerank: none of the best": Row(RERANK, rank(["a"], top_n=0),
        "'top_n' must be a whole number of 1 or more", "top_n"),
    "rerank: a flag as a number": Row(RERANK, rank(["a"], return_documents=1),
        "'return_documents' must be true or false", "return_documents"),
    "rerank: a model for another task": Row(RERANK, rank(["a"], model="minilm"),
        "model 'minilm' is for the task embedding, and this call is for rerank; models for rerank are: 'ranker'",
        "model"),
    # Chats
    "chat: no model": Row(CHAT, {"messages": [{"role": "user", "content": "a"}]},
        "'model' is missing; models that generate text are: 'raw', 'recite', 'shout', 'speaker'", "model"),
    "chat: an unknown model": Row(CHAT, say(model="nothing"),
        "Request for unknown model: 'nothing' is not found", "model", "model_not_found", status=404),
    "chat: a model without a text": Row(CHAT, say(model="add"),
        "model 'add' does not generate text: that takes an input and an output of one text, such as text_input and text_output"),
    "chat: a model without a template": Row(CHAT, say(model="raw"),
        "model 'raw' has no chat template: put chat_template.jinja or tokenizer_config.json into its version's folder, or set the parameter chat_template in its configuration; or send the whole prompt to /v1/completions"),
    "chat: no messages": Row(CHAT, {"model": "speaker"}, "'messages' is missing", "messages"),
    "chat: an empty conversation": Row(CHAT, {"model": "speaker", "messages": []}, "'messages' is empty", "messages"),
    "chat: a text in place of messages": Row(CHAT, {"model": "speaker", "messages": "a"},
        "'messages' must be an array, not a string", "messages"),
    "chat: a message that is none": Row(CHAT, {"model": "speaker", "messages": ["a"]},
        "'messages[0]' must be an object, not a string", "messages[0]"),
    "chat: a role": Row(CHAT, {"model": "speaker", "messages": [{"role": "poet", "content": "a"}]},
        "'messages[0].role' must be one of assistant, developer, function, system, tool, user", "messages[0].role"),
    "chat: no content": Row(CHAT, {"model": "speaker", "messages": [{"role": "user"}]},
        "'messages[0].content' is missing", "messages[0].content"),
    "chat: content of another type": Row(CHAT, say(3),
        "'messages[0].content' must be a string or an array of parts, not the number 3", "messages[0].content"),
    "chat: a picture": Row(CHAT, say([{"type": "image_url", "image_url": {"url": "x"}}]),
        "'messages[0].content[0]' is no text: parts of the type text are supported", "messages[0].content[0]"),
    "chat: a call without a name": Row(CHAT, {"model": "speaker", "messages": [CALL]},
        "'messages[0].tool_calls[0].function.name' must be a string", "messages[0].tool_calls[0].function.name"),
    "chat: tools that are none": Row(CHAT, say(tools=[{"type": "function"}]),
        "'tools[0].function' must be an object, not null", "tools[0].function"),
    "chat: an unknown tool": Row(CHAT, say(tool_choice={"type": "function", "function": {"name": "x"}}),
        "'tool_choice' is for requests with 'tools'", "tool_choice"),
    "chat: tools for a model without a place": Row(CHAT,
        say(model="shout", tools=[{"type": "function", "function": {"name": "f"}}]),
        "model 'shout' takes no tools: its chat template has no place for them", "tools"),
    "chat: too hot": Row(CHAT, say(temperature=2.5), "'temperature' must be between 0 and 2, not 2.5", "temperature"),
    "chat: no tokens": Row(CHAT, say(max_tokens=0),
        "'max_tokens' must be between 1 and 2147483647, not 0", "max_tokens"),
    "chat: a seed of 70 bits": Row(CHAT, say(seed=1 << 70),
        "'seed' must be a whole number, not the number 1.1805916207174113e+21", "seed"),
    "chat: too many choices": Row(CHAT, say(n=129), "'n' must be between 1 and 128, not 129", "n"),
    "chat: too many stops": Row(CHAT, say(stop=["a"] * 17), "'stop' has 17 sequences, at most 16 are possible", "stop"),
    "chat: a stop that is empty": Row(CHAT, say(stop=["a", ""]),
        "'stop' has an empty sequence, which would end every text before it begins", "stop"),
    "chat: a stop of another type": Row(CHAT, say(stop=[1]),
        "'stop' must be a string or a list of strings, not the number 1", "stop"),
    "chat: probabilities that the model has not": Row(CHAT, say(model="shout", logprobs=True),
        "model 'shout' gives no log probabilities: it has no output 'logprobs'", "logprobs"),
    "chat: too many probabilities": Row(CHAT, say(logprobs=True, top_logprobs=21),
        "'top_logprobs' must be between 0 and 20, not 21", "top_logprobs"),
    "chat: a form": Row(CHAT, say(response_format={"type": "xml"}),
        "'response_format.type' must be 'text', 'json_object' or 'json_schema'", "response_format.type"),
    "chat: a schema without a schema": Row(CHAT, say(response_format=SCHEMA),
        "'response_format.json_schema' must have a 'schema', an object", "response_format.json_schema"),
    "chat: a form that the model cannot keep": Row(CHAT, say(model="shout", response_format={"type": "json_object"}),
        "model 'shout' cannot be held to 'response_format': it has no input 'sampling_parameters' or 'structured_outputs'; leave it out",
        "response_format"),
    "chat: functions of before": Row(CHAT, say(functions=[{"name": "f"}]),
        "'functions' is not supported: send 'tools'", "functions"),
    "chat: least tokens for a function": Row(CHAT, say(model="shout", min_tokens=5),
        "model 'shout' cannot be held to 'min_tokens': it has no input 'sampling_parameters' or 'min_tokens'; leave it out",
        "min_tokens"),
    "chat: two forms": Row(CHAT, say(guided_regex="a", response_format={"type": "json_object"}),
        "'guided_regex' and 'response_format' exclude each other: each says what the text has to be", "guided_regex"),
    "chat: options of a stream for none": Row(CHAT, say(stream_options={"include_usage": True}),
        "'stream_options' is for requests with 'stream': true", "stream_options"),
    "chat: a stream as a text": Row(CHAT, say(stream="yes"), "'stream' must be a boolean, not a string", "stream"),
    # Completions
    "completions: no prompt": Row(COMPLETIONS, {"model": "speaker"}, "'prompt' is missing", "prompt"),
    "completions: no prompts": Row(COMPLETIONS, prompt([]), "'prompt' is empty", "prompt"),
    "completions: tokens": Row(COMPLETIONS, prompt([1, 2]),
        "'prompt' has token ids, which are not supported: send texts", "prompt"),
    "completions: an object": Row(COMPLETIONS, prompt({"text": "a"}),
        "'prompt' must be a string or a list of strings, not an object", "prompt"),
    "completions: too many prompts": Row(COMPLETIONS, prompt(["a"] * 257),
        "257 prompts with 1 choices each: more than 256", "prompt"),
    "completions: 100,000 prompts": Row(COMPLETIONS, prompt(["a"] * 100_000),
        "100000 prompts with 1 choices each: more than 256", "prompt"),
    "completions: something behind it": Row(COMPLETIONS, prompt("a", suffix="b"),
        "'suffix' is not supported: write it into the prompt, in the form that the model was trained on", "suffix"),
    "completions: the best of more": Row(COMPLETIONS, prompt("a", best_of=2),
        "'best_of' is not supported: ask for 'n' choices and take the best of them", "best_of"),
    "completions: probabilities of an echo": Row(COMPLETIONS, prompt("a", echo=True, logprobs=1),
        "'logprobs' with 'echo' is not supported: nothing is known of the prompt's tokens", "logprobs"),
    "completions: a model of messages": Row(COMPLETIONS, prompt("a", model="recite"),
        "model 'recite' takes messages only: use chat/completions", "model"),
    # Responses
    "responses: several texts": Row(RESPONSES, respond("a", n=2),
        "'n' is not supported: a response has one text: send the request several times", "n"),
    # TEI
    "embed: no inputs": Row("/embed", {"model": "minilm"},
        "'inputs' must be a string, or a list of strings", code="Validation", status=422),
    "embed: an empty text": Row("/embed", {"inputs": ["a", ""]}, "inputs[1] is empty", code="Empty"),
    "embed: no texts": Row("/embed", {"inputs": []}, "'inputs' has no texts", code="Empty"),
    "embed: tokens": Row("/embed", {"inputs": [[1, 2]]},
        "'inputs[0]' must be a string", code="Validation", status=422),
    "embed: 100,000 texts": Row("/embed", {"inputs": ["a"] * 100_000},
        "'inputs' has 100000 texts, and a request for model 'minilm' may have 2048 (its parameter text.max_texts)",
        code="Validation", status=413),
    "embed: too long": Row("/embed", {"inputs": "b " * 999, "truncate": False},
        "inputs[0] has 1001 tokens, and model 'minilm' takes 256; shorten it, or let it be cut",
        code="Validation", status=413),
    "embed: a direction": Row("/embed", {"inputs": "a", "truncation_direction": "up"},
        "'truncation_direction' must be Left or Right", code="Validation", status=422),
    "embed: a flag as a text": Row("/embed", {"inputs": "a", "normalize": "no"},
        "'normalize' must be true or false", code="Validation", status=422),
    "embed: an unknown model": Row("/embed", {"inputs": "a", "model": "nothing"},
        "there is no model 'nothing'; models for embedding are: 'minilm'", code="Validation", status=404),
    "embed: a model for another task": Row("/embed", {"inputs": "a", "model": "ranker"},
        "model 'ranker' is for the task rerank, and this call is for embedding; models for embedding are: 'minilm'",
        code="Validation", status=422),
    "rank: no texts": Row("/rerank", {"query": "a", "texts": []}, "'texts' has no texts", code="Empty"),
    "rank: a text of another type": Row("/rerank", {"query": "a", "texts": [1]},
        "'texts[0]' must be a string", code="Validation", status=422),
    "rank: an empty query": Row("/rerank", {"query": "", "texts": ["a"]}, "'query' is an empty string", code="Empty"),
    "rank: no query": Row("/rerank", {"texts": ["a"]}, "'query' is missing: a string", code="Validation", status=422),
    "predict: three texts": Row("/predict", {"model": "classifier", "inputs": [["a", "b", "c"]]},
        "'inputs[0]' has 3 strings, and may have one or two", code="Validation", status=422),
    "predict: a pair of empty texts": Row("/predict", {"model": "classifier", "inputs": [["a"], ["", ""]]},
        "inputs[1] is empty", code="Empty"),
    "predict: an empty text": Row("/predict", {"model": "classifier", "inputs": ""},
        "inputs[0] is empty", code="Empty"),
    "predict: one of several models": Row("/predict", {"inputs": "a"},
        "the request names no model, and models for classification or rerank or token_classification are: 'classifier', 'ranker'",
        code="Validation", status=404),
    "similarity: a text": Row("/similarity", {"inputs": "a"},
        "'inputs' must be an object with 'source_sentence' and 'sentences'", code="Validation", status=422),
    "similarity: no sentences": Row("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}},
        "'sentences' has no texts", code="Empty"),
    "similarity: an empty source": Row("/similarity", {"inputs": {"source_sentence": "", "sentences": ["a"]}},
        "'source_sentence' is an empty string", code="Empty"),
    "similarity: parameters of another type": Row("/similarity",
        {"inputs": {"source_sentence": "a", "sentences": ["a"]}, "parameters": [1]},
        "'parameters' must be an object", code="Validation", status=422),
    "tokenize: a number": Row("/tokenize", {"model": "minilm", "inputs": 1},
        "'inputs' must be a string, or a list of strings", code="Validation", status=422),
    "tokenize: no texts": Row("/tokenize", {"model": "minilm", "inputs": []}, "'inputs' has no texts", code="Empty"),
    "decode: texts": Row("/decode", {"model": "minilm", "ids": ["a"]},
        "'ids' must be a list of tokens, or a list of such lists", code="Validation", status=422),
    "decode: a token beyond the vocabulary": Row("/decode", {"model": "minilm", "ids": [[1], [18]]},
        "'ids' has a token that is none of 0 to 17", code="Validation", status=422),
    "decode: a token of 70 bits": Row("/decode", {"model": "minilm", "ids": [1 << 70]},
        "'ids' must be a list of tokens, or a list of such lists", code="Validation", status=422),
}  # fmt: skip
