"""A folder of Triton's vLLM backend on a real vLLM: the same tokens as vLLM called bare, streams, faults."""

import asyncio
import json
import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from vllm_models import PROMPTS, Weights, place, repository, server, weights

import modserve
from modserve import Code, InferenceServer, ModserveError

pytestmark = pytest.mark.asyncio(loop_scope="session")

GREEDY = {"temperature": 0, "max_tokens": 16}
ENDLESS = GREEDY | {"max_tokens": 400, "ignore_eos": True}
RETURNED = ("finish_reason", "num_input_tokens", "num_output_tokens", "token_ids", "logprobs", "cumulative_logprob")
SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


@dataclass
class Answer:
    """All responses of a stream put together."""

    responses: int = 0
    text: str = ""
    reason: str = ""
    prompt: int = 0
    count: int = 0
    ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    score: float = 0.0


def inputs(prompt: str | bytes, sampling: Any = None, **flags: bool) -> dict[str, Any]:
    text = prompt if isinstance(prompt, bytes) else prompt.encode()
    tensors: dict[str, Any] = {"text_input": np.array([text], object)}
    if sampling is not None:
        words = sampling if isinstance(sampling, bytes) else json.dumps(sampling).encode()
        tensors["sampling_parameters"] = np.array([words], object)
    return tensors | {name: np.array([value]) for name, value in flags.items()}


async def say(server: InferenceServer, prompt: str, sampling: Any = None, model: str = "smol", **flags: bool) -> Answer:
    answer = Answer()
    wishes = {"stream": True} | {f"return_{name}": True for name in RETURNED} | flags
    words = {**GREEDY, "logprobs": 1} | (sampling or {})
    async for response in server.infer_stream(model, inputs(prompt, words, **wishes)):
        outputs = {name: tensor.array for name, tensor in response.outputs.items()}
        answer.responses += 1
        answer.text += outputs["text_output"][0].decode()
        answer.reason = outputs["finish_reason"][0].decode()
        answer.prompt = int(outputs["num_input_tokens"][0])
        answer.count += int(outputs["num_output_tokens"][0])
        answer.ids += json.loads(outputs["token_ids"][0])
        answer.logprobs += json.loads(outputs["logprobs"][0])
        answer.score = float(outputs["cumulative_logprob"][0])
    return answer


async def refused(server: InferenceServer, tensors: dict[str, Any]) -> ModserveError:
    with pytest.raises(ModserveError) as raised:
        async for _ in server.infer_stream("smol", tensors):
            pass
    return raised.value


def metrics(server: InferenceServer) -> dict[str, Any]:
    return {family.name: family.rows for family in server.engine_metrics.read()}


def value(server: InferenceServer, name: str) -> float:
    ((_, number),) = metrics(server)[name]
    return float(number)


def clients(server: InferenceServer) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(modserve.asgi(server))
    return httpx.AsyncClient(transport=transport, base_url="http://server", timeout=None)


async def eventually(fact: Callable[[], Any]) -> None:
    async with asyncio.timeout(300):  # vLLM takes half a minute to start
        while not fact():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)


async def test_the_configuration_is_that_of_tritons_backend(server: InferenceServer) -> None:
    async with clients(server) as client:
        config = (await client.get("/v2/models/smol/config")).json()
    assert [each["name"] for each in config["input"]] == [
        *("text_input", "stream", "sampling_parameters", "exclude_input_in_output"),
        *(f"return_{name}" for name in ("finish_reason", "cumulative_logprob", "logprobs")),
        *(f"return_{name}" for name in ("num_input_tokens", "num_output_tokens", "token_ids")),
        "image",
    ]
    assert config["model_transaction_policy"]["decoupled"] is True
    assert config["parameters"]["default_max_tokens"] == {"string_value": "512"}


async def test_streams_say_what_vllm_says_alone(server: InferenceServer, weights: Weights) -> None:
    answers = await asyncio.gather(*(say(server, prompt) for prompt in (*PROMPTS, *PROMPTS)))
    for answer, bare in zip(answers, weights.alone[:4] * 2, strict=True):
        assert answer.ids == bare["ids"]
        assert answer.text == bare["text"]
        assert (answer.prompt, answer.count) == (bare["prompt"], len(bare["ids"]))
        assert answer.reason == ("length" if answer.count == 16 else "stop")
        assert answer.responses > 1
        assert answer.score == pytest.approx(bare["score"], rel=1e-3)
        assert [int(next(iter(each))) for each in answer.logprobs] == bare["ids"]
        assert next(iter(answer.logprobs[0].values())).keys() == {"logprob", "rank", "decoded_token"}


async def test_one_response_has_the_prompt_unless_it_is_excluded(server: InferenceServer, weights: Weights) -> None:
    text = weights.alone[0]["text"]
    whole = await say(server, PROMPTS[0], stream=False)
    assert (whole.responses, whole.text) == (1, PROMPTS[0] + text)
    bare = await say(server, PROMPTS[0], stream=False, exclude_input_in_output=True)
    assert (bare.responses, bare.text) == (1, text)
    error = await refused(server, inputs("x", stream=True, exclude_input_in_output=False))
    assert "a stream never has the input" in error.message
    # As Triton's clients send them: in the parameters of the request, numbers as texts
    values: dict[str, int | str] = {"temperature": "0", "max_tokens": "16", "tenant": "a"}
    async for response in server.infer_stream("smol", inputs(PROMPTS[0]), parameters=values):
        assert response.outputs["text_output"].array[0].decode() == PROMPTS[0] + text
    (only,) = [
        each async for each in server.infer_stream("smol", inputs(PROMPTS[0], {"temperature": 0, "max_tokens": 1}))
    ]
    assert list(only.outputs) == ["text_output"]


async def test_several_outputs_of_one_request(server: InferenceServer) -> None:
    sampling = {"temperature": 1.0, "seed": 3, "n": 3, "max_tokens": 8, "ignore_eos": True}
    texts, counts = [""] * 3, [0] * 3
    flags = {"stream": True, "return_finish_reason": True, "return_num_output_tokens": True}
    async for response in server.infer_stream("smol", inputs(PROMPTS[1], sampling, **flags)):
        outputs = {name: tensor.array.tolist() for name, tensor in response.outputs.items()}
        assert len(outputs["text_output"]) == 3
        texts = [text + part.decode() for text, part in zip(texts, outputs["text_output"], strict=True)]
        counts = [count + part for count, part in zip(counts, outputs["num_output_tokens"], strict=True)]
    assert outputs["finish_reason"] == [b"length"] * 3
    assert counts == [8] * 3
    assert len(set(texts)) == 3
    singles = await asyncio.gather(*(say(server, PROMPTS[1], sampling | {"n": 1, "seed": seed}) for seed in (3, 4, 5)))
    assert texts == [each.text for each in singles]


async def test_stops_and_structured_outputs(server: InferenceServer, weights: Weights) -> None:
    text = weights.alone[1]["text"]
    answers = await asyncio.gather(
        say(server, PROMPTS[1], {"stop": [text[10:18], "never said"]}),
        say(server, "A person as JSON: ", {"structured_outputs": json.dumps({"json": SCHEMA}), "max_tokens": 40}),
        say(server, "The date is ", {"guided_decoding": {"regex": r"\d{4}-\d\d-\d\d"}}),
        say(server, "Is the sky blue? ", {"structured_outputs": {"choice": ["yes.", "no."]}}),
    )
    assert (answers[0].text, answers[0].reason) == (text[:10], "stop")
    assert "age" in json.loads(answers[1].text)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", answers[2].text)
    assert answers[3].text in ("yes.", "no.")


async def test_adapters(server: InferenceServer, weights: Weights) -> None:
    tuned = await say(server, PROMPTS[0], {"lora_name": "noise"})
    plain = await say(server, PROMPTS[0])
    assert tuned.ids == weights.alone[-1]["ids"]
    assert tuned.score == pytest.approx(weights.alone[-1]["score"], rel=1e-3)
    assert plain.ids == weights.alone[0]["ids"]
    assert tuned.score != pytest.approx(plain.score, rel=1e-3)
    error = await refused(server, inputs("x", {"lora_name": "loud"}))
    assert error.message == "LoRA loud is not supported, we currently support ['noise']"


@pytest.mark.parametrize(
    ("prompt", "sampling", "message"),
    [
        ("", {}, "prompt cannot be empty"),
        (b"\xff", {}, "text_input is not UTF-8: byte 0 is invalid"),
        ("x " * 3000, {}, "maximum context length is 512 tokens"),
        ("x", {"max_token": 1}, "unknown sampling parameter 'max_token'; did you mean 'max_tokens'?"),
        ("x", {"temperature": "hot"}, "sampling parameters: Expected `float`, got `str` for `temperature`"),
        ("x", {"temperature": -1}, "temperature must be non-negative"),
        ("x", {"allowed_token_ids": [10**9]}, "allowed_token_ids contains out-of-vocab token id"),
        ("x", {"structured_outputs": {"regex": "((("}}, "unclosed group"),
        ("x", {"structured_outputs": {"json": {"type": "objekt"}}}, "objekt"),
        ("x", {"output_kind": 2}, "unknown sampling parameter 'output_kind'"),
        ("x", b"{'a'}", "sampling_parameters is not JSON: Expecting property name"),
    ],
)
async def test_bad_requests(server: InferenceServer, prompt: str | bytes, sampling: Any, message: str) -> None:
    error = await refused(server, inputs(prompt, sampling))
    assert error.code is Code.INVALID_ARG
    assert message in error.message


async def test_an_abandoned_stream_stops_within_a_token(server: InferenceServer) -> None:
    before = value(server, "modserve_generation_tokens_total")
    stream = server.infer_stream("smol", inputs(PROMPTS[1], ENDLESS, stream=True))
    for _ in range(3):
        await anext(stream)
    await stream.aclose()
    await eventually(lambda: not value(server, "modserve_num_requests_running"))
    assert value(server, "modserve_generation_tokens_total") - before < 20


async def test_a_response_without_a_stream_is_abandoned_too(server: InferenceServer) -> None:
    before = value(server, "modserve_prompt_tokens_total")
    task = asyncio.create_task(refused(server, inputs(PROMPTS[1], ENDLESS)))
    await eventually(lambda: value(server, "modserve_prompt_tokens_total") > before)
    tokens = value(server, "modserve_generation_tokens_total")
    task.cancel()
    await eventually(lambda: not value(server, "modserve_num_requests_running"))
    assert value(server, "modserve_generation_tokens_total") - tokens < 30


async def test_more_requests_than_the_engine_takes(server: InferenceServer, weights: Weights) -> None:
    """What is over its `max_num_seqs` waits in the model's queue."""
    answers = await asyncio.gather(*(say(server, prompt) for prompt in PROMPTS * 10))
    assert [each.ids for each in answers] == [each["ids"] for each in weights.alone[:4]] * 10


async def test_metrics_have_the_names_of_vllm(server: InferenceServer) -> None:
    names = {name: value(server, name) for name in ("modserve_prompt_tokens_total", "modserve_generation_tokens_total")}
    answer = await say(server, PROMPTS[0])
    assert value(server, "modserve_prompt_tokens_total") - names["modserve_prompt_tokens_total"] == answer.prompt
    assert value(server, "modserve_generation_tokens_total") - names["modserve_generation_tokens_total"] == answer.count
    families = metrics(server)
    for name in ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds"):
        ((labels, histogram),) = families[f"modserve_{name}"]
        assert labels == {"model": "smol", "version": "1"}
        assert sum(histogram.buckets) > 0
    for name in (
        *("time_to_first_token_seconds", "time_per_output_token_seconds", "e2e_request_latency_seconds"),
        *("request_prompt_tokens", "request_generation_tokens", "request_params_n"),
    ):
        ((labels, histogram),) = families[f"vllm:{name}"]
        assert labels == {"model": "smol", "version": "1"}
        assert sum(histogram.buckets) > 0
    for name in ("prompt_tokens_total", "generation_tokens_total"):
        assert value(server, f"vllm:{name}") > 0
    await eventually(lambda: value(server, "modserve_num_requests_running") == 0)


async def test_a_chat_by_the_template_of_the_weights(server: InferenceServer) -> None:
    question = {"role": "user", "content": "List the numbers from 1 to 20."}
    body = {"model": "smol", "messages": [question], "temperature": 0, "logprobs": True, "top_logprobs": 2}
    async with clients(server) as client:
        response = await client.post("/v1/chat/completions", json=body)
        picky = await client.post("/v1/chat/completions", json={**body, "temperature": 7})
    assert response.status_code == 200, response.text
    answer = response.json()
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "stop"
    assert "7" in choice["message"]["content"]
    assert answer["usage"]["completion_tokens"] > 16
    content = choice["logprobs"]["content"]
    assert len(content[0]["top_logprobs"]) == 2
    assert picky.status_code == 400
    assert "temperature" in picky.json()["error"]["message"]


async def revived(server: InferenceServer) -> None:
    """Without an instance, the model is not ready and refuses requests."""
    await eventually(lambda: not server.model_ready("smol", None))
    error = await refused(server, inputs("x"))
    assert error.code is Code.UNAVAILABLE
    await eventually(lambda: server.model_ready("smol", None))


async def test_each_stream_hears_of_a_dead_engine_and_a_new_one_serves_the_next_requests(
    server: InferenceServer, weights: Weights
) -> None:
    streams = [server.infer_stream("smol", inputs(prompt, ENDLESS, stream=True)) for prompt in PROMPTS * 2]
    await asyncio.gather(*(anext(stream) for stream in streams))

    async def rest(stream: Any) -> ModserveError:
        with pytest.raises(ModserveError) as raised:
            async for _ in stream:
                pass
        return raised.value

    (engine,) = _processes("VLLM::EngineCore")
    os.kill(engine, signal.SIGKILL)
    errors = await asyncio.gather(*(rest(stream) for stream in streams))
    assert {error.code for error in errors} == {Code.UNAVAILABLE}
    assert all("was lost: its process" in error.message for error in errors)
    await revived(server)
    answer = await say(server, PROMPTS[0])
    assert answer.ids == weights.alone[0]["ids"]
    # And one that dies while nobody wants anything of it
    (engine,) = _processes("VLLM::EngineCore")
    os.kill(engine, signal.SIGKILL)
    await revived(server)
    answer = await say(server, PROMPTS[0])
    assert answer.ids == weights.alone[0]["ids"]


async def test_a_killed_worker_leaves_no_engine_behind(server: InferenceServer, weights: Weights) -> None:
    (engine,) = _processes("VLLM::EngineCore")
    (worker,) = [int(_stat(engine)[1])]
    os.kill(worker, signal.SIGKILL)
    await revived(server)
    await eventually(lambda: not _title(Path(f"/proc/{engine}")))
    assert (await say(server, PROMPTS[0])).ids == weights.alone[0]["ids"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"enforce_eagre": True}, "has no engine argument 'enforce_eagre'; did you mean 'enforce_eager'?"),
        ({"model": "/no/such/folder"}, r"vLLM cannot load '.*model.json': .*(/no/such/folder|Repo id)"),
        ({"max_model_len": 10**6}, r"vLLM cannot load '.*model.json': .*max_model_len"),
    ],
)
async def test_models_that_cannot_be_loaded(
    server: InferenceServer, repository: Path, weights: Weights, arguments: dict[str, Any], message: str
) -> None:
    name = f"bad_{next(iter(arguments))}"
    place(repository, weights, name, **arguments)
    with pytest.raises(ModserveError, match=message):
        await server.load_model(name)


async def test_adapters_need_their_file(server: InferenceServer, repository: Path, weights: Weights) -> None:
    (place(repository, weights, "unadapted") / "multi_lora.json").unlink()
    with pytest.raises(ModserveError, match=r"'enable_lora' is true, but there is no '.*multi_lora.json'"):
        await server.load_model("unadapted")


def _processes(title: str) -> list[int]:
    """Those of this test that have a title, and live."""
    return [
        int(folder.name)
        for folder in Path("/proc").glob("[0-9]*")
        if _title(folder).startswith(title) and _descends(int(folder.name))
    ]


def _title(folder: Path) -> str:
    try:
        return (folder / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _stat(process: int) -> list[str]:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["X", "0"]


def _descends(process: int) -> bool:
    while process > 1:
        if process == os.getpid():
            return True
        process = int(_stat(process)[1])
    return False
