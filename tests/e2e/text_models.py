"""Models that generate text as programs: what they write follows from what they read, token by token.

``speaker`` keeps the whole contract of Triton's vLLM backend: its tokens are the words of the prompt, which it says
back, with what the sampling parameters ask for. ``metered`` also fills the metrics of language models. ``paced`` takes
a step of its generation for each byte in a pipe.
"""

import inspect
import json
import os
import textwrap
from pathlib import Path

from modserve.backends.generation.program import figures

SPEAKER = """
import json
import re
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            self.speak(request)

    def speak(self, request):
        def value(name, default):
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            return default if tensor is None else tensor.as_numpy().reshape(-1)[0]

        sender = request.get_response_sender()
        prompt = value("text_input", b"").decode()
        stream = bool(value("stream", False))
        said = json.loads(value("sampling_parameters", b"{}"))
        words = re.findall(r"\\S+\\s*", prompt)
        read = len(words)
        if "structured_outputs" in said:
            words = [json.dumps(said["structured_outputs"])]
        elif "SAY:" in prompt:
            words = re.findall(r"\\S+\\s*", prompt.rpartition("SAY:")[2])
        elif "PARAMETERS" in prompt:
            words = [json.dumps(said, sort_keys=True)]
        if "FAIL:" in prompt:
            words = words[: int(prompt.rpartition("FAIL:")[2].split()[0])]
        most, reason = said.get("max_tokens", len(words)), "stop"
        if len(words) > most:
            words, reason = words[:most], "length"
        if not stream and not value("exclude_input_in_output", False):
            words.insert(0, prompt)
        pieces = [[word] for word in words] or [[]]
        if not stream:
            pieces = [[word for piece in pieces for word in piece]]
        for index, piece in enumerate(pieces):
            if request.is_cancelled():
                break
            last = index + 1 == len(pieces)
            outputs = [pb_utils.Tensor("text_output", np.array(["".join(piece).encode()], np.object_))]
            if value("return_finish_reason", False):
                outputs.append(pb_utils.Tensor("finish_reason", np.array([reason if last else "None"], np.object_)))
            if value("return_num_input_tokens", False):
                outputs.append(pb_utils.Tensor("num_input_tokens", np.array([read], np.uint32)))
            if value("return_num_output_tokens", False):
                outputs.append(pb_utils.Tensor("num_output_tokens", np.array([len(piece)], np.uint32)))
            if value("return_logprobs", False):
                tokens = [
                    {str(len(word)): {"logprob": -0.5, "rank": 1, "decoded_token": word},
                     "0": {"logprob": -1.5, "rank": 2, "decoded_token": "other"}}
                    for word in piece
                ]
                outputs.append(pb_utils.Tensor("logprobs", np.array([json.dumps(tokens)], np.object_)))
            sender.send(pb_utils.InferenceResponse(outputs))
        if "FAIL:" in prompt:
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("the speaker has lost its voice")))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

METERS = """
from .figures import Figures, clock

Speaker = TritonPythonModel


class TritonPythonModel(Speaker):
    def initialize(self, args):
        labels = {"model": args["model_name"], "version": args["model_version"]}
        self.figures = Figures(pb_utils, labels, args["model_instance_name"])

    def speak(self, request):
        begin = clock()
        super().speak(request)
        figures, seconds = self.figures, clock() - begin
        figures.count("prompt_tokens_total", 5)
        figures.count("generation_tokens_total", 7)
        for name in ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds"):
            figures.observe(name, seconds)
        figures.count_end("stop")
        for name, value in (("num_requests_running", 2), ("num_requests_waiting", 1), ("kv_cache_usage_perc", 0.25)):
            figures.set(name, value)
        figures.report(clock())
"""
"""Behind `SPEAKER`: every request counts as the same."""

PACED = """
import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        folder = os.path.join(args["model_repository"], args["model_version"])
        self.permits, self.events = (os.open(os.path.join(folder, name), os.O_RDWR) for name in ("permits", "events"))

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            while not request.is_cancelled():
                os.read(self.permits, 1)
                os.write(self.events, b"step\\n")
                text = pb_utils.Tensor("text_output", np.array([b"word "], np.object_))
                sender.send(pb_utils.InferenceResponse([text]))
            os.write(self.events, b"end\\n")
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

SPEAKER_CONFIG = """
backend: "python"
max_batch_size: 0
model_transaction_policy { decoupled: true }
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
  { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] optional: true },
  { name: "exclude_input_in_output" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
  { name: "return_finish_reason" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
  { name: "return_num_input_tokens" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
  { name: "return_num_output_tokens" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
  { name: "return_logprobs" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
]
output [
  { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "finish_reason" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "num_input_tokens" data_type: TYPE_UINT32 dims: [ 1 ] },
  { name: "num_output_tokens" data_type: TYPE_UINT32 dims: [ -1 ] },
  { name: "logprobs" data_type: TYPE_STRING dims: [ -1 ] }
]
"""

TEMPLATE = (
    "{% if tools %}tools {{ tools | tojson }} {% endif %}"
    "{% for message in messages %}"
    "<{{ message.role }}> {{ message.content or message.tool_calls | tojson }} "
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ bos_token }}{% endif %}"
)
"""As words, so that the speaker's answers are easy to foresee."""

FUNCTIONS = """
from collections.abc import Iterator

import modserve


@modserve.model(isolation="thread")
def shout(text: str) -> str:
    return text.upper()


@modserve.model(isolation="thread")
def words(text: str, max_tokens: int = 1000) -> Iterator[str]:
    for word in text.split(" ")[:max_tokens]:
        yield word + " "


@modserve.model(isolation="thread")
def recite(messages: str) -> str:
    return messages


@modserve.model(isolation="thread")
def endless(text: str) -> Iterator[str]:
    while True:
        yield text + " "


@modserve.model(isolation="thread")
def add(a: int, b: int) -> int:
    return a + b
"""


def write_functions(repository: Path, code: str, *names: str) -> None:
    """Put functions of `code` into a repository, each as the model of its name."""
    for name in names:
        folder = repository / name / "1"
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(f"{code}\nmodel = {name}\n")


def write_speaker(repository: Path, name: str = "speaker", template: str | None = TEMPLATE) -> Path:
    """Put the model into a repository, with the files of a tokenizer that a chat needs."""
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(SPEAKER)
    (repository / name / "config.pbtxt").write_text(textwrap.dedent(SPEAKER_CONFIG))
    if template is not None:
        config = {"chat_template": template, "bos_token": {"content": "<bos>"}, "eos_token": "<eos>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def write_metered(repository: Path) -> None:
    """A speaker with the metrics of the backend ``openvino_genai``."""
    folder = write_speaker(repository, "metered")
    (folder / "model.py").write_text(SPEAKER + METERS)
    (folder / "figures.py").write_text(inspect.getsource(figures))


class Pace:
    """The steps of the model ``paced``, which goes on until its request is cancelled."""

    def __init__(self, repository: Path) -> None:
        folder = write_speaker(repository, "paced")
        (folder / "model.py").write_text(PACED)
        for name in ("permits", "events"):
            os.mkfifo(folder / name)
        self._permits, events = (os.open(folder / name, os.O_RDWR) for name in ("permits", "events"))
        self._events = os.fdopen(events)

    def permit(self, steps: int) -> None:
        os.write(self._permits, b"s" * steps)

    def withdraw(self, steps: int) -> None:
        """Permits that the model has not used."""
        assert os.read(self._permits, steps) == b"s" * steps

    def next(self) -> str:
        """``step`` when one has been taken, ``end`` when the model has heard that it shall end."""
        return self._events.readline().strip()

    def close(self) -> None:
        os.close(self._permits)
        self._events.close()
