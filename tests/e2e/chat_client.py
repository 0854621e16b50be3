"""OpenAI's client and huggingface_hub's against a server of ``text_models.py``: prints what they got as JSON.

They are in a virtual environment of their own.

``python chat_client.py URL``
"""

import asyncio
import json
import sys
from typing import Any

import huggingface_hub
import openai
from pydantic import BaseModel

(URL,) = sys.argv[1:]
HELLO: Any = [{"role": "user", "content": "hello big world"}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
CALLING: Any = [{"role": "user", "content": f"SAY:Well {CALL}"}]
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


class Structured(BaseModel):
    """The speaker says what it is held to, so this is what its answer to a schema looks like."""

    json_: dict[str, Any] | None = None


def refused(call: Any) -> list[Any]:
    try:
        call()
    except openai.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.code, error.param, error.type]
    return []


def streamed(client: openai.OpenAI, **fields: Any) -> dict[str, Any]:
    texts, usage, reason, calls = [], None, None, []
    for chunk in client.chat.completions.create(stream=True, **fields):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts += [choice.delta.content or ""]
            reason = choice.finish_reason or reason
            calls += [[call.function.name, call.function.arguments] for call in choice.delta.tool_calls or ()]
    return {"texts": [text for text in texts if text], "tokens": usage and usage.total_tokens, "reason": reason,
            "calls": calls}  # fmt: skip


def broken(client: openai.OpenAI) -> list[str]:
    """A stream whose model fails after two words."""
    words = []
    try:
        for chunk in client.chat.completions.create(
            model="speaker", messages=[{"role": "user", "content": "FAIL:2"}], stream=True
        ):
            words.append(chunk.choices[0].delta.content or "")
    except openai.APIError as error:
        words.append(f"{type(error).__name__}: {error.message}")
    return words[1:]


async def asynchronous(path: str) -> dict[str, Any]:
    async with openai.AsyncOpenAI(base_url=URL + path, api_key="none", max_retries=0) as client:
        whole = await client.chat.completions.create(model="speaker", messages=HELLO)
        stream = await client.chat.completions.create(model="endless", messages=HELLO, stream=True)
        texts = []
        async for chunk in stream:
            texts.append(chunk.choices[0].delta.content)
            if len(texts) == 4:
                break
        await stream.close()
        many = await asyncio.gather(
            *(client.completions.create(model="speaker", prompt=f"text {number}") for number in range(20))
        )
        return {
            "whole": whole.choices[0].message.content,
            "abandoned": texts,
            "many": [each.choices[0].text for each in many],
        }


def responses(client: openai.OpenAI) -> dict[str, Any]:
    create: Any = client.responses.create
    whole = create(model="speaker", input="hello big world", instructions="brief")
    with client.responses.stream(model="speaker", input=HELLO) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_response()
    raw = [event.delta for event in create(model="speaker", input="a b", stream=True) if event.type.endswith("t.delta")]
    parsed = client.responses.parse(model="speaker", input=HELLO, text_format=Structured)
    tool = {"type": "function", "name": "weather", "parameters": TOOLS[0]["function"]["parameters"]}
    called = create(model="speaker", input=CALLING, tools=[tool])
    result = {"type": "function_call_output", "call_id": called.output[-1].call_id, "output": "rain"}
    after = create(model="speaker", input=[*CALLING, *called.output, result], tools=[tool])
    short = create(model="speaker", input=HELLO, max_output_tokens=2)
    failing: Any = {"model": "speaker", "input": "FAIL:0"}
    return {
        "whole": [whole.status, whole.output_text, whole.usage.total_tokens, whole.store],
        "stream": [kinds[0], kinds.count("response.output_text.delta"), kinds[-1], streamed.output_text],
        "events": raw,
        "parsed": json.loads(parsed.output_text)["json"]["title"],
        "tools": [[item.type, getattr(item, "name", None), getattr(item, "arguments", None)] for item in called.output],
        "after a tool": "<tool> rain" in after.output_text,
        "short": [short.status, short.incomplete_details.reason, short.output_text],
        "stored": refused(lambda: create(model="speaker", input="x", previous_response_id="resp_1")),
        "failed": refused(lambda: create(**failing)),
        "failed stream": [event.type for event in create(**failing | {"input": "FAIL:1"}, stream=True)][-2:],
    }


def hub(path: str) -> dict[str, Any]:
    client = huggingface_hub.InferenceClient(base_url=URL + path, api_key="none")
    chat: Any = client.chat_completion
    whole = chat(HELLO, model="speaker", max_tokens=3)
    stream = chat(HELLO, model="speaker", stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    called = chat(CALLING, model="speaker", tools=TOOLS)
    (call,) = called.choices[0].message.tool_calls
    return {
        "whole": [whole.choices[0].message.content, whole.choices[0].finish_reason, whole.usage.completion_tokens],
        "stream": ["".join(each.choices[0].delta.content or "" for each in chunks if each.choices),
                   chunks[-1].usage.total_tokens],
        "tools": [call.function.name, call.function.arguments],
    }  # fmt: skip


def calls(path: str) -> dict[str, Any]:
    client = openai.OpenAI(base_url=URL + path, api_key="none", max_retries=0)
    chat: Any = client.chat.completions.create
    speaker: Any = {"model": "speaker", "messages": HELLO}
    whole = chat(**speaker)
    probable = chat(**speaker, logprobs=True, top_logprobs=2).choices[0].logprobs
    parsed = client.chat.completions.parse(**speaker, response_format=Structured).choices[0].message
    called = chat(model="speaker", messages=CALLING, tools=TOOLS).choices[0]
    completion = client.completions.create(model="speaker", prompt=["a b", "c"], n=2, logprobs=1, echo=False)
    result: Any = [*CALLING, called.message, {"role": "tool", "tool_call_id": "x", "content": "rain"}]
    after = chat(model="speaker", messages=result, tools=TOOLS, tool_choice="none")
    said: Any = {"temperature": 0, "top_p": 0.5, "seed": 7, "presence_penalty": 1}
    also = {"top_k": 3, "ignore_eos": True}
    parameters = chat(model="speaker", messages=[{"role": "user", "content": "PARAMETERS"}], **said, extra_body=also)
    return {
        "whole": [whole.object, whole.choices[0].message.content, whole.choices[0].finish_reason,
                  whole.usage and whole.usage.total_tokens],
        "stream": streamed(client, **speaker, stream_options={"include_usage": True}),
        "length": streamed(client, **speaker, max_completion_tokens=2),
        "stop": streamed(client, model="endless", messages=HELLO, stop="big world hello"),
        "choices": [choice.message.content for choice in chat(model="shout", messages=HELLO, n=3).choices],
        "parameters": json.loads(parameters.choices[0].message.content or ""),
        "logprobs": [[token.token, token.logprob, len(token.top_logprobs)] for token in
                     ((probable and probable.content) or ())][:2],
        "structured": json.loads(parsed.content or "")["json"]["title"],
        "tools": [called.finish_reason, called.message.content,
                  [[call.function.name, call.function.arguments] for call in called.message.tool_calls or ()]],
        "tool stream": streamed(client, model="speaker", messages=CALLING, tools=TOOLS),
        "after a tool": after.choices[0].message.content,
        "completions": [[choice.index, choice.text, choice.logprobs and choice.logprobs.tokens]
                        for choice in completion.choices],
        "models": sorted(model.id for model in client.models.list()),
        "model": client.models.retrieve("speaker").id,
        "broken": broken(client),
        "unknown": refused(lambda: chat(model="nosuch", messages=HELLO)),
        "no text": refused(lambda: chat(model="add", messages=HELLO)),
        "no template": refused(lambda: chat(model="raw", messages=HELLO)),
        "temperature": refused(lambda: chat(**speaker, temperature=3)),
        "failed": refused(lambda: chat(model="speaker", messages=[{"role": "user", "content": "FAIL:0"}])),
        "async": asyncio.run(asynchronous(path)),
        "responses": responses(client),
        "hub": hub(path),
    }  # fmt: skip


print(json.dumps({path: calls(path) for path in ("/v1", "/openai/v1")}))
