"""Texts that are no Unicode, of terminals' commands, or of megabytes, from models and file systems.

Each entrance is tried in each mode of Python models; every page that lists or counts models still answers.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from python_models import EVERY_MODE, PROTOCOLS, every_mode, infer, stream, tensors, write_python
from server_process import ServerProcess, serving
from tritonclient.grpc import InferenceServerClient
from wire import HOST, Answer, http

TENSORS = tensors("input", IN="INT32 -1") + "\n" + tensors("output", OUT="INT32 -1")
TALKER = r"""
BAD = b"caf\xe9".decode("utf-8", "surrogateescape")

def good(parameters=None):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1, np.int32))], parameters=parameters)

def fail(error):
    raise error

def failed(text):
    return pb_utils.InferenceResponse([], error=pb_utils.TritonError(text))

class TritonPythonModel:
    def execute(self, requests):
        return [CASES[int(request.inputs()[0].as_numpy()[0])]() for request in requests]

CASES = [
    good,
    lambda: failed("bad " + BAD),
    lambda: fail(ValueError("raised " + BAD)),
    lambda: good({"file": BAD}),
    lambda: good({BAD: "file"}),
    lambda: good({"file": "fine é☃"}),
    lambda: failed("x" * 20_000_000),
    lambda: failed("nul \x00 and \x1b[2J"),
    lambda: pb_utils.InferenceResponse([pb_utils.Tensor(BAD, np.zeros(1, np.int32))]),
    lambda: pb_utils.InferenceRequest(BAD, 0, [], ["OUT"], "talker_MODE"),
    lambda: pb_utils.InferenceRequest("", BAD, [], ["OUT"], "talker_MODE"),
    lambda: pb_utils.InferenceRequest("", 0, [], ["OUT"], "talker_MODE", parameters={"a": BAD}),
    lambda: pb_utils.MetricFamily("family_MODE", BAD, pb_utils.MetricFamily.COUNTER),
    lambda: pb_utils.MetricFamily("labels_MODE", "fine", pb_utils.MetricFamily.COUNTER).Metric({"a": BAD}),
    lambda: pb_utils.Logger.log_warn("logged " + BAD + " \x1b[2J\nnext MODE") or good(),
    lambda: pb_utils.Logger.log_warn("y" * 20_000_000) or good(),
    lambda: print("printed", BAD, "☃ MODE") or good(),
]
"""
ESCAPED = r"caf\udce9"


class Case(NamedTuple):
    """An input of `TALKER`, and what the error says; empty for none."""

    number: int
    error: str
    statuses: tuple[str, str] = ("500", "INTERNAL")


WRONG = ("400", "INVALID_ARGUMENT")
CASES = {
    "error": Case(1, f"bad {ESCAPED}"),
    "exception": Case(2, f"ValueError: raised {ESCAPED}"),
    "parameter's value": Case(3, "responded with the parameter 'file', which has a lone surrogate"),
    "parameter's name": Case(4, rf"responded with the parameter '{ESCAPED}', which has a lone surrogate"),
    "megabytes": Case(6, " characters in all ...] "),
    "controls": Case(7, "nul \x00 and \x1b[2J"),
    "tensor's name": Case(8, ""),
    "id of a call": Case(9, "InferenceRequest(): request_id has a lone surrogate, which is no character"),
    "sequence of a call": Case(10, "InferenceRequest(): correlation_id has a lone surrogate"),
    "parameter of a call": Case(11, "InferenceRequest(): parameters has a lone surrogate"),
    "description of a metric": Case(12, "cannot be written as UTF-8", WRONG),
    "label of a metric": Case(13, "cannot be written as UTF-8", WRONG),
}
LOGGED = (14, 15, 16)
BROKEN = r"""
raise Exception(b"module \xe9".decode("utf-8", "surrogateescape") + " \x1b[2J")
"""


FUNCTIONS = r"""
from collections.abc import Iterator
import modserve

BAD = b"caf\xe9".decode("utf-8", "surrogateescape")

@modserve.model(isolation="thread")
def raises(text: str) -> str:
    raise ValueError("bad " + BAD)

@modserve.model(isolation="thread")
def returns(text: str) -> str:
    return "text " + BAD

@modserve.model(isolation="thread")
def yields(text: str) -> Iterator[str]:
    yield "fine "
    yield BAD

@modserve.model(isolation="thread")
def talks(messages: str) -> str:
    raise ValueError("bad " + BAD)
"""
JSON = {"Content-Type": "application/json"}
FUNCTION_NAMES = ("raises", "returns", "yields", "talks")


def write(root: Path) -> None:
    write_python(root, "talker", TALKER, TENSORS, modes=EVERY_MODE)
    write_python(root, "broken", BROKEN, TENSORS, modes=EVERY_MODE)
    write_python(root, "modèle☃", TALKER, TENSORS, modes=("thread",))
    write_python(root, "linked", TALKER, TENSORS, modes=("thread",))
    # A file name that is no UTF-8 is in the reason why the model is not loaded.
    os.symlink("/etc/hostname", os.path.join(os.fsencode(root / "linked_thread" / "1"), b"caf\xe9.txt"))
    os.makedirs(os.path.join(os.fsencode(root), b"caf\xe9", b"1"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("strangers")
    write(root)
    functions = tmp_path_factory.mktemp("functions") / "functions.py"
    functions.write_text(FUNCTIONS)
    options = ["--strict-readiness=false", *(f"{functions}:{name}" for name in FUNCTION_NAMES)]
    errors = [
        r"raises|returns|yields|talks|broken_|linked_|talker_|ValueError: raised|TritonModelException: |Exception: "
    ]
    with serving(root, options=options, errors=errors, environment={"PYTHONIOENCODING": "ascii"}) as running:
        yield running


def check_pages(server: ServerProcess) -> None:
    """Every page about all models answers."""
    for path in ("/v2/models", "/v1/models", "/v2/models/stats", "/v2", "/v2/logging", "/console", "/console/failures"):
        answer = http(server.http_port, "GET", path)
        assert answer.status == 200, (path, answer.body)
        answer.body.decode()
    page = http(server.metrics_port, "GET", "/metrics")
    assert page.status == 200
    assert 'model="modèle☃_thread"' in page.body.decode()
    index = json.loads(http(server.http_port, "POST", "/v2/repository/index").body)
    with InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        models = client.get_model_repository_index().models
        assert [(each.name, each.state, each.reason) for each in models] == [
            (each["name"], each.get("state", ""), each.get("reason", "")) for each in index
        ]


def test_models_are_listed_with_their_reasons(server: ServerProcess) -> None:
    check_pages(server)
    index = {each["name"]: each for each in json.loads(http(server.http_port, "POST", "/v2/repository/index").body)}
    talkers = {f"{name}_{mode}" for name in ("talker", "broken") for mode in EVERY_MODE}
    assert index.keys() == talkers | {"modèle☃_thread", "linked_thread", *FUNCTION_NAMES}
    for mode in EVERY_MODE:
        assert rf"Exception: module \udce9 {chr(27)}[2J" in index[f"broken_{mode}"]["reason"]
    assert rf"{ESCAPED}.txt" in index["linked_thread"]["reason"]


def test_the_terminal_and_the_log_have_no_commands(server: ServerProcess) -> None:
    """A folder whose name is no UTF-8 is left out, and the log says so; standard output is ASCII here."""
    assert "\x1b" not in server.log
    assert r"mod\xe8le\u2603_thread" in server.log
    assert "is ignored: the name of a model's folder must be UTF-8; rename it" in server.log


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@every_mode
def test_one_request_fails(server: ServerProcess, mode: str, case: Case, protocol: str) -> None:
    answer = infer(server, protocol, f"talker_{mode}", {"IN": [case.number]})
    assert answer.status == case.statuses[PROTOCOLS.index(protocol)], answer
    assert case.error in answer.message
    assert len(answer.message) <= 4096
    assert infer(server, protocol, f"talker_{mode}", {"IN": [0]}).message == ""
    check_pages(server)


@every_mode
def test_a_stream_goes_on(server: ServerProcess, mode: str) -> None:
    """An error ends its request, and no other of its stream."""
    with stream(server) as opened:
        for number in (0, *(case.number for case in CASES.values()), 0):
            opened.send(f"talker_{mode}", {"IN": [number]}, enable_empty_final_response=False)
        answers = [opened.next() for _ in range(len(CASES) + 2)]
    assert answers[0].message == answers[-1].message == ""
    for case, answer in zip(CASES.values(), answers[1:-1], strict=True):
        assert answer.message
        assert case.error in answer.message


@pytest.mark.parametrize("protocol", PROTOCOLS)
@every_mode
def test_characters_are_kept(server: ServerProcess, mode: str, protocol: str) -> None:
    answer = infer(server, protocol, f"talker_{mode}", {"IN": [5]})
    assert answer.parameters["file"] == "fine é☃"


@pytest.mark.parametrize("number", LOGGED)
@every_mode
def test_lines_of_the_log(server: ServerProcess, mode: str, number: int) -> None:
    answer = infer(server, "http", f"talker_{mode}", {"IN": [number]})
    assert answer.message == ""
    assert np.array_equal(answer.outputs["OUT"], [0])
    if number == 14:
        server.wait_for(rf"logged caf\\udce9 \\x1b\[2J\\nnext {mode}")
    elif number == 15:
        server.wait_for(r"y{1000}.* \[\.\.\. 20000000 characters in all \.\.\.\] y+")
        assert max(map(len, server.log.splitlines())) < 70_000
    elif mode == "process":
        server.wait_for(r"printed caf\\udce9 ")
    assert "\x1b" not in server.log


CALLS = {
    "generate": ("/v2/models/{}/generate", {"text": "a"}),
    "generate_stream": ("/v2/models/{}/generate_stream", {"text": "a"}),
    "completions": ("/v1/completions", {"prompt": "a"}),
    "completions, streamed": ("/v1/completions", {"prompt": "a", "stream": True}),
    "responses": ("/v1/responses", {"input": "a"}),
    "responses, streamed": ("/v1/responses", {"input": "a", "stream": True}),
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    "chat, streamed": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "stream": True}),
}


@pytest.mark.parametrize(("path", "body"), CALLS.values(), ids=CALLS)
def test_texts_of_functions(server: ServerProcess, path: str, body: dict[str, object]) -> None:
    """An error of a text API says what the model said; a text that is none is the model's failure, too."""

    def post(model: str) -> Answer:
        content = body if "generate" in path else {**body, "model": model}
        return http(server.http_port, "POST", path.format(model), json.dumps(content).encode(), JSON)

    chat = "chat" in path
    answer = post("talks" if chat else "raises")
    assert answer.status == 500
    assert r"ValueError: bad caf\\udce9" in answer.body.decode()
    if chat:
        return
    answer = post("returns")
    assert answer.status == 500
    assert r"character '\\udce9' in position 8: surrogates not allowed" in answer.body.decode()
    answer = post("yields")
    assert answer.status == (200 if "stream" in path or "stream" in body else 500)
    assert r"character '\\udce9' in position 3: surrogates not allowed" in answer.body.decode()
    assert "Internal Server Error" not in answer.body.decode()
