"""OpenAI's agents SDK against a server of ``text_models.py``: prints what it got as JSON.

``python agents_client.py URL``
"""

import asyncio
import json
import sys
from typing import Any

from agents import (
    Agent,
    MaxTurnsExceeded,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

URL = sys.argv[1]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
KINDS: dict[str, Any] = {"responses": OpenAIResponsesModel, "chat": OpenAIChatCompletionsModel}

set_tracing_disabled(True)  # which would be sent to OpenAI


@function_tool  # type: ignore[untyped-decorator]
def weather(city: str) -> str:
    """The weather."""
    return f"rain in {city}"


async def outputs_of_tools(agent: Agent) -> list[str]:
    """The speaker repeats its prompt, so it calls the tool in every turn."""
    try:
        await Runner.run(agent, f"SAY:Well {CALL}", max_turns=2)
    except MaxTurnsExceeded as error:
        items = error.run_data.new_items if error.run_data else []
        return [item.output for item in items if item.type == "tool_call_output_item"]
    return []


async def conversation(client: AsyncOpenAI, kind: str) -> dict[str, Any]:
    model = KINDS[kind]("speaker", client)
    agent = Agent(name="a", instructions="brief", model=model)
    first = await Runner.run(agent, "hello big world")
    second = await Runner.run(agent, [*first.to_input_list(), {"role": "user", "content": "again"}])
    streamed = Runner.run_streamed(agent, "hello big world")
    pieces = [
        event.data.delta
        async for event in streamed.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    return {
        "first": [first.final_output, first.raw_responses[0].usage.total_tokens],
        "second": second.final_output,
        "stream": [pieces, streamed.final_output],
        "tools": await outputs_of_tools(Agent(name="b", model=model, tools=[weather])),
    }


async def conversations() -> dict[str, Any]:
    async with AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0) as client:
        return {kind: await conversation(client, kind) for kind in KINDS}


print(json.dumps(asyncio.run(conversations())))
