"""What most servers do not use is imported at its first use, and not before: see `rest.app`."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, sys, tempfile
from pathlib import Path

import httpx
import modserve.process.app
from modserve.frontends.http.rest.app import create_app
from modserve.settings import HttpSettings
from puppet_server import JSON_BODY, PuppetLoader, server_over

server = server_over(Path(tempfile.mkdtemp()), PuppetLoader())
asyncio.run(server.load())
transport = httpx.ASGITransport(create_app(server, HttpSettings()))


async def request(method, path, body=b""):
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return (await client.request(method, path, content=body)).status_code


def imported():
    return {name.removeprefix("modserve.") for name in sys.modules if name.startswith("modserve.")}


for path in ("/v2/health/ready", "/v2/models/simple/config", "/v2/models/stats", "/v2/docs", "/nothing", "/v2/v1/"):
    asyncio.run(request("GET", path))
assert asyncio.run(request("POST", "/v2/models/simple/infer", JSON_BODY)) == 200
before = imported()
assert asyncio.run(request("GET", sys.argv[1])) == int(sys.argv[2]), sys.argv[1]
print(*sorted(before), "|", *sorted(imported() - before))
"""

V1 = {
    *("frontends.http.openai", "frontends.http.openai.models", "text", "text.chat", "text.chat.contract"),
    "frontends.http.parts",
    "frontends.http.rest.predict",
    "frontends.http.rest.v1",
    "protocol.http.v1_models",
    "protocol.http.v1_predict_request",
    "protocol.http.v1_predict_response",
    *("text.chat.errors", "text.chat.fields", "text.chat.suggestions", "text.files", "text.openai_errors"),
    "text.unknown_fields",
}
TEXTS = {
    "frontends.http.parts",
    *(f"frontends.http.text{name}" for name in ("", ".fields", ".models", ".openai", ".rerank", ".text_calls")),
    *(f"frontends.http.text{name}" for name in (".handlers", ".routes", ".tei")),
    *(
        f"text{name}"
        for name in ("", ".dense", ".description", ".files", ".openai_errors", ".outputs", ".pooling", ".tokenizer")
    ),
    *("text.tei_errors", "text.unknown_fields"),
}
EXPLORER, PAGE = "frontends.http.explorer", "frontends.http.single_page"
DOCS = {"frontends.http.rest.docs", "frontends.http.rest.model_document", "protocol.examples", "protocol.snippets"}
CONSOLE = {
    f"frontends.http.console{name}"
    for name in ("", ".counters", ".figures", ".page", ".routes", ".sampler", ".snapshot", ".streams", ".tenants")
} | {"core.statistics.time_parts"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/models", V1),
        ("/", set()),
        ("/docs", {*DOCS, EXPLORER, PAGE}),
        ("/console/about", {*CONSOLE, PAGE}),
        ("/info", TEXTS),
    ],
)
def test_a_door_opens_at_its_first_use(path: str, expected: set[str]) -> None:
    command = [sys.executable, "-c", PROGRAM, path, "404" if path == "/info" else "200"]
    run = subprocess.run(command, cwd=Path(__file__).parent, text=True, capture_output=True, timeout=60)
    assert run.returncode == 0, run.stderr
    before, after = (set(part.split()) for part in run.stdout.split("|"))
    assert not before & (V1 | DOCS | CONSOLE | TEXTS)
    assert after == expected
