"""OpenAI's client against a server of ``text_models.py``, in its own virtual environment: prints what it got as JSON.

``python chat_client.py URL``
"""

import asyncio
import json
import sys
from typing import Any

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
    }  # fmt: skip


print(json.dumps({path: calls(path) for path in ("/v1", "/openai/v1")}))
