"""Keys and tokens on the calls of texts, with clients for node, and a hunt for them in all that a server tells."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from foreign_clients import run_client
from node_packages import node_modules
from server_process import ServerProcess, eventually, serving
from text_models import write_speaker
from wire import HOST, SECONDS, Answer, http

from modserve.frontends.http.direct import MODULES

PATHS = sorted(path.decode() for path in MODULES)
ISSUER = "https://id.example"
MESSAGES = [{"role": "user", "content": "hello"}]
BODY = {"model": "speaker", "messages": MESSAGES, "input": "hello", "inputs": "hello"}
"""For each of the calls: those of models of other kinds refuse it later than those who have no key."""


class Place(NamedTuple):
    server: ServerProcess
    folder: Path
    key: str
    token: str


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder, models = tmp_path_factory.mktemp("told"), tmp_path_factory.mktemp("models")
    file, log = folder / "keys.yaml", folder / "log"
    write_speaker(models)
    command = [sys.executable, "-m", "modserve", "keys", "add", "user", "--file", str(file)]
    key = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    private = ec.generate_private_key(ec.SECP256R1())
    public = {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(private.public_key())), "kid": "one", "use": "sig"}
    (folder / "jwks.json").write_text(json.dumps({"keys": [public]}))
    row = {"issuer": ISSUER, "audience": "modserve", "jwks": str(folder / "jwks.json"), "scopes": {"*": ["infer"]}}
    with file.open("a") as end:
        end.write(f"\njwt: [{json.dumps(row)}]\n")
    claims = {"iss": ISSUER, "aud": "modserve", "sub": "alice", "exp": int(time.time()) + 3600}
    token = jwt.encode(claims, private, "ES256", headers={"kid": "one"})
    options = [f"--auth-file={file}", f"--log-file={log}", "--log-verbose=9", "--access-log=all", "--request-ids=all"]
    options += ["--trace-config=level=TIMESTAMPS", "--trace-config=level=TENSORS", "--trace-config=rate=1"]
    options += [f"--trace-config=triton,file={folder / 'traces'}"]
    with serving(models, options=options) as server:
        yield Place(server, folder, key, token)


def post(place: Place, path: str, secret: str, **more: Any) -> Answer:
    prompt = {"prompt": "hello"} if path.endswith("v1/completions") else {}
    body = json.dumps({**BODY, **prompt, **more}).encode()
    return http(place.server.http_port, "POST", path, body, {"Authorization": f"Bearer {secret}"})


def test_openai_for_node(place: Place) -> None:
    script, module = Path(__file__).with_name("openai_keys.mjs"), node_modules("openai") / "openai" / "index.mjs"
    url = f"http://{HOST}:{place.server.http_port}"
    done = run_client(["node", script, module, url, place.key])
    assert done.returncode == 0, done.stderr
    said = "<user> hello <bos>"
    assert json.loads(done.stdout) == [[said, said], ["AuthenticationError", 401]]


def test_grpc_for_node(place: Place) -> None:
    script, proto = Path(__file__).with_name("grpc_keys.js"), Path(__file__).parents[2] / "protos/grpc_service.proto"
    done = subprocess.run(
        ["node", str(script), str(place.server.grpc_port), str(proto), place.key],
        env={**os.environ, "NODE_PATH": str(node_modules("grpc"))},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["speaker", "speaker", 16, 16]


def test_no_secret_is_told(place: Place) -> None:
    """Neither keys nor verified tokens are in any log, trace or answer, whatever becomes of the call."""
    server, wrong = place.server, f"{place.key[:-4]}wrong"
    said = []
    for path in PATHS:
        for secret in (place.key, place.token):
            responses = [post(place, path, secret), post(place, path, secret, model="nosuch")]
            responses.append(post(place, path, secret, stream=True))
            said += [repr(each) for each in responses]
            assert {401, 403}.isdisjoint(each.status for each in responses), path
            generates = path.endswith(("completions", "responses"))
            assert (responses[0].status == 200) is generates, responses[0]
    for secret in (wrong, f"{place.token[:-8]}AAAAAAAA"):
        response = post(place, "/v1/chat/completions", secret)
        assert response.status == 401
        said.append(repr(response))
    eventually(lambda: "nosuch" in (place.folder / "log").read_text())
    texts = {path.name: path.read_text() for path in place.folder.iterdir()}
    texts |= {"answers": "\n".join(said), "output": server.log, "ps": Path(f"/proc/{server.pid}/cmdline").read_text()}
    assert {"log", "traces"} <= {name.partition(".")[0] for name in texts}
    assert "speaker" in texts["log"]
    for secret in (place.key[4:-4], *place.token.split(".")[1:]):
        assert [name for name, text in texts.items() if secret in text] == []
