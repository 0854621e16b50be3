"""Chat templates of strangers: what they cost is their own conversation's, and the server ends when it is told to."""

import json
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from server_process import ServerProcess, eventually, serving
from text_models import write_speaker
from wire import Answer

from attack.measuring import Limits, attacked
from attack.sending import SECONDS, post

ENDLESS: Final = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
PAYLOADS: Final = {
    "endless": ENDLESS,
    "endless without a clock": "{% set __tick = dict %}" + ENDLESS,
    "few slow turns": "{% for i in range(63) %}{{ range(99999) | list | sort | list | sort | length }}{% endfor %}"
    * 20,
    "large number": "{% set n = messages | length + 9 %}{{ n ** (n ** 9) }}",
    "translate": "{{ ('a' * 1000).translate({97: 'b' * 10000000}) }}",
    "multiply": "{{ 'a' * (messages | length * 1000000000) }}",
    "doubling": "{% set ns = namespace(x='aaaa') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "lists": "{% set ns = namespace(x=[]) %}{% for i in range(99) %}{% set ns.x = [ns.x | string, ns.x] %}{% endfor %}",
}
SLOW: Final = ("endless without a clock", "few slow turns", "large number")
"""Each computes for two seconds; what becomes of one behind another is seen with "endless"."""
LIMITS: Final = ("did not end within 2 s of CPU time", "needs more than 512 MiB of memory")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, identities: Path) -> Path:
    path = tmp_path_factory.mktemp("chats")
    cases = [f"{{% if payload == '{name}' %}}{source}{{% endif %}}" for name, source in PAYLOADS.items()]
    write_speaker(path, "stranger", "".join(cases) + "{{ messages[0].content }}")
    write_speaker(path)
    return path


@pytest.fixture(scope="module")
def server(repository: Path, identities: Path) -> Iterator[ServerProcess]:
    with serving(repository, identities) as running:
        yield running


def chat(server: ServerProcess, model: str, **arguments: Any) -> Answer:
    messages = [{"role": "user", "content": "hello"}]
    body = {"model": model, "messages": messages, "chat_template_kwargs": arguments}
    return post(server, "/v1/chat/completions", json.dumps(body).encode())


def said(answer: Answer) -> str:
    assert answer.status == 200, answer.body
    return str(answer.json["choices"][0]["message"]["content"])


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_hostile_template(server: ServerProcess, payload: str) -> None:
    """Other models' chats, and inferences, go on; so do chats by the same template behind it."""
    assert said(chat(server, "stranger")) == "hello"
    assert "hello" in said(chat(server, "speaker"))
    with attacked(server, payload, Limits(peak_mb=64, cpu_seconds=2)), ThreadPoolExecutor(3) as threads:
        failing = [
            threads.submit(chat, server, "stranger", payload=payload) for _ in range(1 if payload in SLOW else 2)
        ]
        behind = threads.submit(chat, server, "stranger")
        for _ in range(20):
            assert "hello" in said(chat(server, "speaker"))
        for each in failing:
            answer = each.result()
            assert answer.status == 500
            message = answer.json["error"]["message"]
            assert message.startswith("the chat template of model 'stranger' ")
            assert message.endswith(LIMITS)
        assert said(behind.result()) == "hello"


def test_a_server_ends_while_a_template_runs(repository: Path) -> None:
    with serving(repository, options=[f"--exit-timeout-secs={SECONDS:g}"]) as server:
        assert said(chat(server, "stranger")) == "hello"
        (children,) = [Path(f"/proc/{server.pid}/task/{server.pid}/children")]
        before = children.read_text().split()
        results: list[Answer] = []
        caller = threading.Thread(target=lambda: results.append(chat(server, "stranger", payload="endless")))
        caller.start()
        programs = [each for each in before if b"template_program" in Path(f"/proc/{each}/cmdline").read_bytes()]
        (program,) = programs
        eventually(lambda: Path(f"/proc/{program}/stat").read_text().rpartition(") ")[2][0] == "R")
        server.signal(signal.SIGTERM)
        server.wait(0, seconds=SECONDS)
        caller.join()
        assert [each.status for each in results] == [500]
        eventually(lambda: not Path(f"/proc/{program}").exists())


def test_workers_have_a_template_process_each(repository: Path) -> None:
    """Those whose template runs for ever have their errors; the others answer, and all end."""
    with serving(repository, options=["--workers=2"]) as server, ThreadPoolExecutor(2) as threads:
        failing = [threads.submit(chat, server, "stranger", payload="endless") for _ in range(2)]
        for _ in range(20):
            assert "hello" in said(chat(server, "speaker"))
        assert [each.result().status for each in failing] == [500] * 2
        assert said(chat(server, "stranger")) == "hello"
