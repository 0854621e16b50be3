# ruff: noqa: E501
"""Calls of texts that are wrong, or nearly so: what is sent, and the status and the error of the answer.

`test_bad_texts` sends them all.
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
    status: int
    message: str
    param: str | None = None
    code: str | None = None

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


def not_held(field: str, input: str) -> str:
    return (
        f"model 'shout' cannot be held to '{field}': it has no input 'sampling_parameters' or '{input}'; leave it out"
    )


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
    "embeddings: nothing to embed": Row(
        EMBEDDINGS,
        {"model": "minilm"},
        400,
        "'input' is missing: a string, a list of strings, a list of tokens, or a list of lists of tokens",
        param="input",
    ),
    "embeddings: an empty text": Row(
        EMBEDDINGS, embed(""), 400, "'input' is an empty string", param="input", code="empty_input"
    ),
    "embeddings: an empty text among others": Row(
        EMBEDDINGS, embed(["a", "", "b"]), 400, "input[1] is empty", param="input[1]", code="empty_input"
    ),
    "embeddings: no texts": Row(EMBEDDINGS, embed([]), 400, "'input' has no texts", param="input", code="empty_input"),
    "embeddings: no tokens": Row(
        EMBEDDINGS, embed([[]]), 400, "'input[0]' has no tokens", param="input[0]", code="empty_input"
    ),
    "embeddings: a number": Row(
        EMBEDDINGS,
        embed(1.5),
        400,
        "'input' has another type: a string, a list of strings, a list of tokens, or a list of lists of tokens",
        param="input",
    ),
    "embeddings: an object": Row(
        EMBEDDINGS,
        embed({"text": "a"}),
        400,
        "'input' has another type: a string, a list of strings, a list of tokens, or a list of lists of tokens",
        param="input",
    ),
    "embeddings: texts and tokens": Row(
        EMBEDDINGS,
        embed(["a", 1]),
        400,
        "'input' must be a string, a list of strings, a list of tokens, or a list of lists of tokens",
        param="input",
    ),
    "embeddings: nested too deep": Row(
        EMBEDDINGS,
        embed([[["a"]]]),
        400,
        "'input[0]' must be a string, a list of strings, a list of tokens, or a list of lists of tokens",
        param="input[0]",
    ),
    "embeddings: a token beyond the vocabulary": Row(
        EMBEDDINGS,
        embed([101, 30522, 102]),
        400,
        "'input': token 1 is 30522, and the model's tokens are 0 to 30521",
        param="input",
    ),
    "embeddings: a token below it": Row(
        EMBEDDINGS,
        embed([[101], [-1]]),
        400,
        "'input[1]': token 0 is -1, and the model's tokens are 0 to 30521",
        param="input[1]",
    ),
    "embeddings: a token of 70 bits": Row(
        EMBEDDINGS,
        embed([1 << 70]),
        400,
        "'input' must be a string, a list of strings, a list of tokens, or a list of lists of tokens",
        param="input",
    ),
    "embeddings: half a token": Row(
        EMBEDDINGS,
        embed([101, 0.5]),
        400,
        "'input' must be a string, a list of strings, a list of tokens, or a list of lists of tokens",
        param="input",
    ),
    "embeddings: 100,000 texts": Row(
        EMBEDDINGS,
        embed(["a"] * 100_000),
        400,
        "'input' has 100000 texts, and a request for model 'minilm' may have 2048 (its parameter text.max_texts)",
        param="input",
        code="too_many_inputs",
    ),
    "embeddings: 100,000 lists of tokens": Row(
        EMBEDDINGS,
        embed([[101]] * 100_000),
        400,
        "'input' has 100000 texts, and a request for model 'minilm' may have 2048 (its parameter text.max_texts)",
        param="input",
        code="too_many_inputs",
    ),
    "embeddings: no dimensions": Row(
        EMBEDDINGS,
        embed("a", dimensions=0),
        400,
        "'dimensions' must be a whole number of 1 or more",
        param="dimensions",
    ),
    "embeddings: more dimensions than there are": Row(
        EMBEDDINGS,
        embed("a", dimensions=385),
        400,
        "'dimensions' is 385, and the embeddings of model 'minilm' have 384",
        param="dimensions",
    ),
    "embeddings: dimensions as a text": Row(
        EMBEDDINGS,
        embed("a", dimensions="2"),
        400,
        "'dimensions' must be a whole number of 1 or more",
        param="dimensions",
    ),
    "embeddings: an encoding": Row(
        EMBEDDINGS,
        embed("a", encoding_format="int8"),
        400,
        "'encoding_format' must be one of float, base64",
        param="encoding_format",
    ),
    "embeddings: too long": Row(
        EMBEDDINGS,
        embed(["a", "b " * 999], truncate=False),
        400,
        "input[1] has 1001 tokens, and model 'minilm' takes 256; shorten it, or let it be cut",
        param="input[1]",
        code="context_length_exceeded",
    ),
    "embeddings: a prompt that is not there": Row(
        EMBEDDINGS,
        embed("a", prompt_name="x"),
        400,
        "the model has no prompt 'x'; its prompts are: none",
        param="prompt_name",
    ),
    "embeddings: a model of another type": Row(
        EMBEDDINGS, embed("a", model=["minilm"]), 400, "'model' must be a string: the name of a model", param="model"
    ),
    "embeddings: an unknown model": Row(
        EMBEDDINGS,
        embed("a", model="nothing"),
        404,
        "there is no model 'nothing'; models for embedding are: 'minilm'",
        param="model",
        code="model_not_found",
    ),
    "embeddings: a model for another task": Row(
        EMBEDDINGS,
        embed("a", model="ranker"),
        400,
        "model 'ranker' is for the task rerank, and this call is for embedding; models for embedding are: 'minilm'",
        param="model",
    ),
    "embeddings: a model that takes no texts": Row(
        EMBEDDINGS,
        embed("a", model="add"),
        400,
        "model 'add' takes no texts: there is no tokenizer.json beside its file",
    ),
    # Documents
    "rerank: no query": Row(
        RERANK, {"model": "ranker", "documents": ["a"]}, 400, "'query' is missing: a string", param="query"
    ),
    "rerank: an empty query": Row(
        RERANK, rank(["a"], ""), 400, "'query' is an empty string", param="query", code="empty_input"
    ),
    "rerank: a query of another type": Row(RERANK, rank(["a"], ["a"]), 400, "'query' must be a string", param="query"),
    "rerank: no documents": Row(
        RERANK, rank([]), 400, "'documents' has no texts", param="documents", code="empty_input"
    ),
    "rerank: documents of another type": Row(
        RERANK,
        rank("a"),
        400,
        "'documents' must be a list of strings, or of objects with a member 'text'",
        param="documents",
    ),
    "rerank: a document of another type": Row(
        RERANK, rank(["a", 3]), 400, "'documents[1]' must be a string", param="documents[1]"
    ),
    "rerank: a document without a text": Row(
        RERANK, rank([{"title": "a"}]), 400, "'documents[0]' must be a string", param="documents[0]"
    ),
    "rerank: too many documents": Row(
        RERANK,
        rank(["a"] * 2049),
        400,
        "'documents' has 2049 texts, and a request for model 'ranker' may have 2048 (its parameter text.max_texts)",
        param="documents",
        code="too_many_inputs",
    ),
    "rerank: none of the best": Row(
        RERANK, rank(["a"], top_n=0), 400, "'top_n' must be a whole number of 1 or more", param="top_n"
    ),
    "rerank: a flag as a number": Row(
        RERANK,
        rank(["a"], return_documents=1),
        400,
        "'return_documents' must be true or false",
        param="return_documents",
    ),
    "rerank: a model for another task": Row(
        RERANK,
        rank(["a"], model="minilm"),
        400,
        "model 'minilm' is for the task embedding, and this call is for rerank; models for rerank are: 'ranker'",
        param="model",
    ),
    # Chats
    "chat: no model": Row(
        CHAT,
        {"messages": [{"role": "user", "content": "a"}]},
        400,
        "'model' is missing; models that generate text are: 'raw', 'recite', 'shout', 'speaker'",
        param="model",
    ),
    "chat: an unknown model": Row(
        CHAT,
        say(model="nothing"),
        404,
        "Request for unknown model: 'nothing' is not found",
        param="model",
        code="model_not_found",
    ),
    "chat: a model without a text": Row(
        CHAT,
        say(model="add"),
        400,
        "model 'add' does not generate text: that takes an input and an output of one text, such as text_input and text_output",
    ),
    "chat: a model without a template": Row(
        CHAT,
        say(model="raw"),
        400,
        "model 'raw' has no chat template: put chat_template.jinja or tokenizer_config.json into its version's folder, set the parameter chat_template in its configuration, or send the whole prompt to /v1/completions",
    ),
    "chat: no messages": Row(CHAT, {"model": "speaker"}, 400, "'messages' is missing", param="messages"),
    "chat: an empty conversation": Row(
        CHAT, {"model": "speaker", "messages": []}, 400, "'messages' is empty", param="messages"
    ),
    "chat: a text in place of messages": Row(
        CHAT, {"model": "speaker", "messages": "a"}, 400, "'messages' must be an array, not a string", param="messages"
    ),
    "chat: a message that is none": Row(
        CHAT,
        {"model": "speaker", "messages": ["a"]},
        400,
        "'messages[0]' must be an object, not a string",
        param="messages[0]",
    ),
    "chat: a role": Row(
        CHAT,
        {"model": "speaker", "messages": [{"role": "poet", "content": "a"}]},
        400,
        "'messages[0].role' must be one of assistant, developer, function, system, tool, user",
        param="messages[0].role",
    ),
    "chat: no content": Row(
        CHAT,
        {"model": "speaker", "messages": [{"role": "user"}]},
        400,
        "'messages[0].content' is missing",
        param="messages[0].content",
    ),
    "chat: content of another type": Row(
        CHAT,
        say(3),
        400,
        "'messages[0].content' must be a string or an array of parts, not the number 3",
        param="messages[0].content",
    ),
    "chat: a picture": Row(
        CHAT,
        say([{"type": "image_url", "image_url": {"url": "x"}}]),
        400,
        "'messages[0].content[0]' is no text: parts of the type text are supported",
        param="messages[0].content[0]",
    ),
    "chat: a call without a name": Row(
        CHAT,
        {"model": "speaker", "messages": [CALL]},
        400,
        "'messages[0].tool_calls[0].function.name' must be a string",
        param="messages[0].tool_calls[0].function.name",
    ),
    "chat: tools that are none": Row(
        CHAT,
        say(tools=[{"type": "function"}]),
        400,
        "'tools[0].function' must be an object, not null",
        param="tools[0].function",
    ),
    "chat: an unknown tool": Row(
        CHAT,
        say(tool_choice={"type": "function", "function": {"name": "x"}}),
        400,
        "'tool_choice' is for requests with 'tools'",
        param="tool_choice",
    ),
    "chat: tools for a model without a place": Row(
        CHAT,
        say(model="shout", tools=[{"type": "function", "function": {"name": "f"}}]),
        400,
        "model 'shout' takes no tools: its chat template has no place for them",
        param="tools",
    ),
    "chat: too hot": Row(
        CHAT, say(temperature=2.5), 400, "'temperature' must be between 0 and 2, not 2.5", param="temperature"
    ),
    "chat: no tokens": Row(
        CHAT, say(max_tokens=0), 400, "'max_tokens' must be between 1 and 2147483647, not 0", param="max_tokens"
    ),
    "chat: a seed of 70 bits": Row(
        CHAT,
        say(seed=1 << 70),
        400,
        "'seed' must be a whole number, not the number 1.1805916207174113e+21",
        param="seed",
    ),
    "chat: too many choices": Row(CHAT, say(n=129), 400, "'n' must be between 1 and 128, not 129", param="n"),
    "chat: too many stops": Row(
        CHAT, say(stop=["a"] * 17), 400, "'stop' has 17 sequences, at most 16 are possible", param="stop"
    ),
    "chat: a stop that is empty": Row(
        CHAT,
        say(stop=["a", ""]),
        400,
        "'stop' has an empty sequence, which would end every text before it begins",
        param="stop",
    ),
    "chat: a stop of another type": Row(
        CHAT, say(stop=[1]), 400, "'stop' must be a string or a list of strings, not the number 1", param="stop"
    ),
    "chat: probabilities that the model has not": Row(
        CHAT,
        say(model="shout", logprobs=True),
        400,
        "model 'shout' gives no log probabilities: it has no output 'logprobs'",
        param="logprobs",
    ),
    "chat: too many probabilities": Row(
        CHAT,
        say(logprobs=True, top_logprobs=21),
        400,
        "'top_logprobs' must be between 0 and 20, not 21",
        param="top_logprobs",
    ),
    "chat: a form": Row(
        CHAT,
        say(response_format={"type": "xml"}),
        400,
        "'response_format.type' must be 'text', 'json_object' or 'json_schema'",
        param="response_format.type",
    ),
    "chat: a schema without a schema": Row(
        CHAT,
        say(response_format=SCHEMA),
        400,
        "'response_format.json_schema' must have a 'schema', an object",
        param="response_format.json_schema",
    ),
    "chat: a form that the model cannot keep": Row(
        CHAT,
        say(model="shout", response_format={"type": "json_object"}),
        400,
        not_held("response_format", "structured_outputs"),
        param="response_format",
    ),
    "chat: functions of before": Row(
        CHAT, say(functions=[{"name": "f"}]), 400, "'functions' is not supported: send 'tools'", param="functions"
    ),
    "chat: least tokens for a function": Row(
        CHAT,
        say(model="shout", min_tokens=5),
        400,
        not_held("min_tokens", "min_tokens"),
        param="min_tokens",
    ),
    "chat: two forms": Row(
        CHAT,
        say(guided_regex="a", response_format={"type": "json_object"}),
        400,
        "'guided_regex' and 'response_format' exclude each other: each says what the text has to be",
        param="guided_regex",
    ),
    "chat: options of a stream for none": Row(
        CHAT,
        say(stream_options={"include_usage": True}),
        400,
        "'stream_options' is for requests with 'stream': true",
        param="stream_options",
    ),
    "chat: a stream as a text": Row(
        CHAT, say(stream="yes"), 400, "'stream' must be a boolean, not a string", param="stream"
    ),
    # Completions
    "completions: no prompt": Row(COMPLETIONS, {"model": "speaker"}, 400, "'prompt' is missing", param="prompt"),
    "completions: no prompts": Row(COMPLETIONS, prompt([]), 400, "'prompt' is empty", param="prompt"),
    "completions: tokens": Row(
        COMPLETIONS, prompt([1, 2]), 400, "'prompt' has token ids, which are not supported: send texts", param="prompt"
    ),
    "completions: an object": Row(
        COMPLETIONS,
        prompt({"text": "a"}),
        400,
        "'prompt' must be a string or a list of strings, not an object",
        param="prompt",
    ),
    "completions: too many prompts": Row(
        COMPLETIONS, prompt(["a"] * 257), 400, "257 prompts with 1 choices each: more than 256", param="prompt"
    ),
    "completions: 100,000 prompts": Row(
        COMPLETIONS, prompt(["a"] * 100_000), 400, "100000 prompts with 1 choices each: more than 256", param="prompt"
    ),
    "completions: something behind it": Row(
        COMPLETIONS,
        prompt("a", suffix="b"),
        400,
        "'suffix' is not supported: write it into the prompt, in the form that the model was trained on",
        param="suffix",
    ),
    "completions: the best of more": Row(
        COMPLETIONS,
        prompt("a", best_of=2),
        400,
        "'best_of' is not supported: ask for 'n' choices and take the best of them",
        param="best_of",
    ),
    "completions: probabilities of an echo": Row(
        COMPLETIONS,
        prompt("a", echo=True, logprobs=1),
        400,
        "'logprobs' with 'echo' is not supported: nothing is known of the prompt's tokens",
        param="logprobs",
    ),
    "completions: a model of messages": Row(
        COMPLETIONS,
        prompt("a", model="recite"),
        400,
        "model 'recite' takes messages only: use chat/completions",
        param="model",
    ),
    # Responses
    "responses: no input": Row(RESPONSES, {"model": "speaker"}, 400, "'input' is missing", param="input"),
    "responses: an empty input": Row(RESPONSES, respond([]), 400, "'input' is empty", param="input"),
    "responses: a number": Row(
        RESPONSES, respond(1), 400, "'input' must be a string or an array of items, not the number 1", param="input"
    ),
    "responses: an item that is none": Row(
        RESPONSES, respond(["a"]), 400, "'input[0]' must be an object, not a string", param="input[0]"
    ),
    "responses: an unknown item": Row(
        RESPONSES,
        respond([{"type": "computer_call"}]),
        400,
        "'input[0].type' must be 'message', 'function_call', 'function_call_output' or 'reasoning'",
        param="input[0].type",
    ),
    "responses: a picture": Row(
        RESPONSES,
        respond([{"role": "user", "content": [{"type": "input_image"}]}]),
        400,
        "'input[0].content[0]' is no text: parts of the types input_text and output_text are supported",
        param="input[0].content[0]",
    ),
    "responses: a response of before": Row(
        RESPONSES,
        respond("a", previous_response_id="resp_1"),
        400,
        "'previous_response_id' is not supported: nothing is stored, so send the whole conversation",
        param="previous_response_id",
    ),
    "responses: in the background": Row(
        RESPONSES,
        respond("a", background=True),
        400,
        "'background' is not supported: responses are not stored",
        param="background",
    ),
    "responses: a search": Row(
        RESPONSES,
        respond("a", tools=[{"type": "web_search"}]),
        400,
        "'tools[0].type' must be 'function': there are no other tools here",
        param="tools[0].type",
    ),
    "responses: a form": Row(
        RESPONSES,
        respond("a", text={"format": {"type": "xml"}}),
        400,
        "'text.format.type' must be 'text', 'json_object' or 'json_schema'",
        param="text.format.type",
    ),
    "responses: no tokens": Row(
        RESPONSES,
        respond("a", max_output_tokens=0),
        400,
        "'max_output_tokens' must be between 1 and 2147483647, not 0",
        param="max_output_tokens",
    ),
    "responses: several texts": Row(
        RESPONSES,
        respond("a", n=2),
        400,
        "'n' is not supported: a response has one text: send the request several times",
        param="n",
    ),
    "responses: what to include": Row(
        RESPONSES, respond("a", include="all"), 400, "'include' must be an array, not a string", param="include"
    ),
    # TEI
    "embed: no inputs": Row(
        "/embed", {"model": "minilm"}, 422, "'inputs' must be a string, or a list of strings", code="Validation"
    ),
    "embed: an empty text": Row("/embed", {"inputs": ["a", ""]}, 400, "inputs[1] is empty", code="Empty"),
    "embed: no texts": Row("/embed", {"inputs": []}, 400, "'inputs' has no texts", code="Empty"),
    "embed: tokens": Row("/embed", {"inputs": [[101, 102]]}, 422, "'inputs[0]' must be a string", code="Validation"),
    "embed: 100,000 texts": Row(
        "/embed",
        {"inputs": ["a"] * 100_000},
        413,
        "'inputs' has 100000 texts, and a request for model 'minilm' may have 2048 (its parameter text.max_texts)",
        code="Validation",
    ),
    "embed: too long": Row(
        "/embed",
        {"inputs": "b " * 999, "truncate": False},
        413,
        "inputs[0] has 1001 tokens, and model 'minilm' takes 256; shorten it, or let it be cut",
        code="Validation",
    ),
    "embed: a direction": Row(
        "/embed",
        {"inputs": "a", "truncation_direction": "up"},
        422,
        "'truncation_direction' must be Left or Right",
        code="Validation",
    ),
    "embed: a flag as a text": Row(
        "/embed", {"inputs": "a", "normalize": "no"}, 422, "'normalize' must be true or false", code="Validation"
    ),
    "embed: an unknown model": Row(
        "/embed",
        {"inputs": "a", "model": "nothing"},
        404,
        "there is no model 'nothing'; models for embedding are: 'minilm'",
        code="Validation",
    ),
    "embed: a model for another task": Row(
        "/embed",
        {"inputs": "a", "model": "ranker"},
        422,
        "model 'ranker' is for the task rerank, and this call is for embedding; models for embedding are: 'minilm'",
        code="Validation",
    ),
    "rank: no texts": Row("/rerank", {"query": "a", "texts": []}, 400, "'texts' has no texts", code="Empty"),
    "rank: a text of another type": Row(
        "/rerank", {"query": "a", "texts": [1]}, 422, "'texts[0]' must be a string", code="Validation"
    ),
    "rank: an empty query": Row(
        "/rerank", {"query": "", "texts": ["a"]}, 400, "'query' is an empty string", code="Empty"
    ),
    "rank: no query": Row("/rerank", {"texts": ["a"]}, 422, "'query' is missing: a string", code="Validation"),
    "predict: three texts": Row(
        "/predict",
        {"model": "classifier", "inputs": [["a", "b", "c"]]},
        422,
        "'inputs[0]' has 3 strings, and may have one or two",
        code="Validation",
    ),
    "predict: a pair of empty texts": Row(
        "/predict", {"model": "classifier", "inputs": [["a"], ["", ""]]}, 400, "inputs[1] is empty", code="Empty"
    ),
    "predict: an empty text": Row(
        "/predict", {"model": "classifier", "inputs": ""}, 400, "inputs[0] is empty", code="Empty"
    ),
    "predict: one of several models": Row(
        "/predict",
        {"inputs": "a"},
        404,
        "the request names no model, and models for classification or rerank or token_classification are: 'classifier', 'ranker'",
        code="Validation",
    ),
    "similarity: a text": Row(
        "/similarity",
        {"inputs": "a"},
        422,
        "'inputs' must be an object with 'source_sentence' and 'sentences'",
        code="Validation",
    ),
    "similarity: no sentences": Row(
        "/similarity",
        {"inputs": {"source_sentence": "a", "sentences": []}},
        400,
        "'sentences' has no texts",
        code="Empty",
    ),
    "similarity: an empty source": Row(
        "/similarity",
        {"inputs": {"source_sentence": "", "sentences": ["a"]}},
        400,
        "'source_sentence' is an empty string",
        code="Empty",
    ),
    "similarity: parameters of another type": Row(
        "/similarity",
        {"inputs": {"source_sentence": "a", "sentences": ["a"]}, "parameters": [1]},
        422,
        "'parameters' must be an object",
        code="Validation",
    ),
    "tokenize: a number": Row(
        "/tokenize",
        {"model": "minilm", "inputs": 1},
        422,
        "'inputs' must be a string, or a list of strings",
        code="Validation",
    ),
    "tokenize: no texts": Row(
        "/tokenize", {"model": "minilm", "inputs": []}, 400, "'inputs' has no texts", code="Empty"
    ),
    "decode: texts": Row(
        "/decode",
        {"model": "minilm", "ids": ["a"]},
        422,
        "'ids' must be a list of tokens, or a list of such lists",
        code="Validation",
    ),
    "decode: a token beyond the vocabulary": Row(
        "/decode",
        {"model": "minilm", "ids": [[1], [30522]]},
        422,
        "'ids' has a token that is none of 0 to 30521",
        code="Validation",
    ),
    "decode: a token of 70 bits": Row(
        "/decode",
        {"model": "minilm", "ids": [1 << 70]},
        422,
        "'ids' must be a list of tokens, or a list of such lists",
        code="Validation",
    ),
}
