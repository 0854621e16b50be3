"""Keys with real clients, a file that changes under a server, certificates, and a hunt for secrets."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import foreign_clients
import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from authority import Authority
from google.protobuf import message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from repositories import EXAMPLES
from server_here import serving_here
from server_process import Server, ServerProcess, eventually, serving
from test_first_calls import Reflected
from tritonclient.utils import InferenceServerException
from wire import HOST, SECONDS, Ask, binary_request, channel, http, infer_path, message, stub

import modserve
from modserve.client.errors import ClientError

SINGLE = "c0ffee-single-key-6b1d"
SUM = [[2] * 16]


class Place(NamedTuple):
    server: Server
    file: Path
    user: str
    """The secret of a key for model 'simple'."""


def keys(file: Path, *words: str) -> str:
    """The secret that the command prints, if it prints one."""
    command = [sys.executable, "-m", "modserve", "keys", *words, "--file", str(file)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    file = tmp_path_factory.mktemp("keys") / "keys.yaml"
    user = keys(file, "add", "user", "--scope", "simple=infer,read")
    with serving_here(EXAMPLES, options=[f"--auth-file={file}"], environment={"MODSERVE_API_KEY": SINGLE}) as server:
        yield Place(server, file, user)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def inputs(module: Any) -> list[Any]:
    tensors = []
    for name in ("INPUT0", "INPUT1"):
        tensor = module.InferInput(name, [1, 16], "INT32")
        tensor.set_data_from_numpy(np.ones((1, 16), dtype=np.int32))
        tensors.append(tensor)
    return tensors


def test_tritonclient_over_http(place: Place) -> None:
    with tritonclient.http.InferenceServerClient(f"{HOST}:{place.server.http_port}") as client:
        assert client.is_server_ready()
        for headers in (bearer(place.user), {"x-api-key": place.user}, bearer(SINGLE)):
            result = client.infer("simple", inputs(tritonclient.http), headers=dict(headers))
            assert result.as_numpy("OUTPUT0").tolist() == SUM
            assert client.get_model_metadata("simple", headers=dict(headers))["name"] == "simple"
        index = client.get_model_repository_index(headers=bearer(place.user))
        assert [row["name"] for row in index] == ["simple"]
        with pytest.raises(InferenceServerException, match="this call needs a key") as raised:
            client.infer("simple", inputs(tritonclient.http))
        assert raised.value.status() == "401"
        with pytest.raises(InferenceServerException, match="needs the scope 'control'") as raised:
            client.unload_model("simple", headers=bearer(place.user))
        assert raised.value.status() == "403"


def test_tritonclient_over_grpc(place: Place) -> None:
    with tritonclient.grpc.InferenceServerClient(f"{HOST}:{place.server.grpc_port}") as client:
        assert client.is_server_ready()
        headers = {"authorization": f"Bearer {place.user}"}
        result = client.infer("simple", inputs(tritonclient.grpc), headers=headers)
        assert result.as_numpy("OUTPUT0").tolist() == SUM
        for wrong, status in (({}, "UNAUTHENTICATED"), ({"x-api-key": "wrong"}, "UNAUTHENTICATED")):
            with pytest.raises(InferenceServerException) as raised:
                client.infer("simple", inputs(tritonclient.grpc), headers=wrong)
            assert raised.value.status() == f"StatusCode.{status}"
        with pytest.raises(InferenceServerException, match="needs the scope 'admin'") as raised:
            client.get_log_settings(headers=headers)
        assert raised.value.status() == "StatusCode.PERMISSION_DENIED"


def test_tritonclient_with_asyncio(place: Place) -> None:
    async def over_http() -> Any:
        async with tritonclient.http.aio.InferenceServerClient(f"{HOST}:{place.server.http_port}") as client:
            return await client.infer("simple", inputs(tritonclient.http.aio), headers=bearer(place.user))

    async def over_grpc() -> Any:
        async with tritonclient.grpc.aio.InferenceServerClient(f"{HOST}:{place.server.grpc_port}") as client:
            headers = {"x-api-key": place.user}
            return await client.infer("simple", inputs(tritonclient.grpc.aio), headers=headers)

    for call in (over_http, over_grpc):
        assert asyncio.run(call()).as_numpy("OUTPUT0").tolist() == SUM


def test_a_stream_of_tritonclient(place: Place) -> None:
    results: list[Any] = []
    with tritonclient.grpc.InferenceServerClient(f"{HOST}:{place.server.grpc_port}") as client:
        client.start_stream(
            lambda result, error: results.append(error or result), headers={"authorization": f"Bearer {place.user}"}
        )
        client.async_stream_infer("simple", inputs(tritonclient.grpc))
        client.async_stream_infer("digits", inputs(tritonclient.grpc))
        client.stop_stream()
    assert results[0].as_numpy("OUTPUT0").tolist() == SUM
    assert "Request for unknown model: 'digits' is not found" in str(results[1])


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_our_client(place: Place, scheme: str) -> None:
    port = place.server.http_port if scheme == "http" else place.server.grpc_port
    with modserve.connect(f"{scheme}://{HOST}:{port}", headers=bearer(place.user)) as client:
        assert [row["name"] for row in client.models()] == ["simple"]
        assert client.infer("simple", dict.fromkeys(("INPUT0", "INPUT1"), [1] * 16))["OUTPUT0"].tolist() == SUM
        with pytest.raises(ClientError, match="needs the scope") as forbidden:
            client.load("simple")
    stranger = modserve.connect(f"{scheme}://{HOST}:{port}")
    with stranger, pytest.raises(ClientError, match="needs a key") as unknown:
        stranger.models()
    errors = [(raised.value.code, raised.value.status) for raised in (unknown, forbidden)]
    assert errors == [(modserve.Code.INVALID_ARG, 401), (modserve.Code.INVALID_ARG, 403)]


def test_our_commands_send_the_key_of_the_environment(place: Place) -> None:
    command = [sys.executable, "-m", "modserve", "models", "--url", f"http://{HOST}:{place.server.http_port}"]
    environment = {name: value for name, value in os.environ.items() if name != "MODSERVE_API_KEY"}
    without = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (without.returncode, "MODSERVE_API_KEY in the environment" in without.stderr) == (1, True)
    with_key = {**environment, "MODSERVE_API_KEY": place.user}
    listed = subprocess.run(command, capture_output=True, text=True, env=with_key, check=True)
    assert "simple" in listed.stdout
    assert "digits" not in listed.stdout


def test_a_client_that_knows_only_what_reflection_says(place: Place) -> None:
    """As grpcurl does it: messages of the server's own descriptions, and a key in the metadata."""
    with channel(place.server.grpc_port) as opened:
        pool = DescriptorPool(Reflected(opened, "v1"))  # which needs no key
        method = pool.FindServiceByName("inference.GRPCInferenceService").methods_by_name["ModelMetadata"]
        request = message_factory.GetMessageClass(method.input_type)(name="simple")
        call: Any = opened.unary_unary(
            "/inference.GRPCInferenceService/ModelMetadata",
            request_serializer=type(request).SerializeToString,
            response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
        )
        for metadata in ([("authorization", f"Bearer {place.user}")], [("x-api-key", place.user)]):
            metadata_of_model = call(request, metadata=metadata, timeout=SECONDS)
            assert [each.name for each in metadata_of_model.inputs] == ["INPUT0", "INPUT1"]
        with pytest.raises(grpc.RpcError) as refused:
            call(request, timeout=SECONDS)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_curl(place: Place) -> None:
    url = f"http://{HOST}:{place.server.http_port}/v2/models"
    for header in (f"Authorization: Bearer {place.user}", f"X-API-Key: {place.user}"):
        done = subprocess.run(["curl", "-sf", "-H", header, url], capture_output=True, check=True)
        assert json.loads(done.stdout) == {"models": ["simple"]}
    refused = subprocess.run(["curl", "-si", url], capture_output=True, text=True, check=True)
    assert refused.stdout.startswith("HTTP/1.1 401 Unauthorized")
    assert "WWW-Authenticate: Bearer" in refused.stdout


def test_openai(place: Place) -> None:
    script = Path(__file__).parent / "openai_keys.py"
    known = {"message": "the key is not known", "type": "authentication_error", "param": None, "code": None}
    for prefix in ("/openai/v1", "/v1"):
        url = f"http://{HOST}:{place.server.http_port}{prefix}"
        done = foreign_clients.run_client([foreign_clients.PYTHON, script, url, place.user])
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == [[], ["AuthenticationError", 401, known]]  # it has no models of texts


def test_metrics_need_a_key_that_may_read_all(place: Place) -> None:
    for port in (place.server.metrics_port, place.server.http_port):
        for method in ("GET", "HEAD"):
            assert http(port, method, "/metrics").status == 401
            assert http(port, method, "/metrics", headers=bearer(place.user)).status == 403
            assert http(port, method, "/metrics", headers=bearer(SINGLE)).status == 200
        page = http(port, "GET", "/metrics", headers=bearer(SINGLE)).body
        assert b'nv_inference_count{model="simple"' in page
        assert b"nv_inference_count" not in http(port, "OPTIONS", "/metrics").body


def test_health_is_as_open_at_the_metrics_port_as_elsewhere(place: Place) -> None:
    assert http(place.server.metrics_port, "GET", "/v2/health/ready").status == 200
    closed = ["--auth-open=metrics"]
    with serving_here(EXAMPLES, options=closed, environment={"MODSERVE_API_KEY": SINGLE}) as server:
        for port in (server.metrics_port, server.http_port):
            statuses = [
                http(port, "GET", "/v2/health/ready", headers=headers).status for headers in ({}, bearer(SINGLE))
            ]
            assert statuses == [401, 200]
            assert http(port, "GET", "/metrics").status == 200


def test_the_doctor_learns_nothing_without_a_key(place: Place) -> None:
    """Also where its environment has one: it asks as a stranger does."""
    command = [sys.executable, "-m", "modserve", "doctor", "--security", "--json"]
    command.append(f"--url=http://{HOST}:{place.server.http_port}")
    environment = {**os.environ, "MODSERVE_API_KEY": SINGLE}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    rows = json.loads(done.stdout)
    assert [row["name"] for row in rows if row["level"] != "ok"] == []
    assert {row["name"] for row in rows if row["text"] == "refused without a key or header"} == {
        *("read", "infer", "texts", "model control", "logs", "traces", "shared memory", "statistics", "metrics")
    }
    assert SINGLE not in done.stdout


def test_the_server_follows_its_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    first = keys(file, "add", "first")
    stay = "the previous keys stay in use"
    with serving(EXAMPLES, options=[f"--auth-file={file}"], errors=[stay]) as server:
        port = server.http_port

        def status(key: str) -> int:
            return http(port, "GET", "/v2/models/simple", headers=bearer(key)).status

        other = keys(file, "add", "other")
        eventually(lambda: status(other) == 200)
        text = file.read_text()
        file.write_text(text[: len(text) // 2] + "\n: [")
        eventually(lambda: stay in server.log)
        assert status(other) == 200
        page = http(server.metrics_port, "GET", "/metrics", headers=bearer(first)).body.decode()
        counts = dict(re.findall(r'^modserve_background_task_failures_total{task="(.*)"} (.*)$', page, re.MULTILINE))
        assert float(counts.pop("keys")) > 0
        assert {"event_loop", "threads", "http_timeouts"} <= set(counts)
        assert set(counts.values()) == {"0.0"}
        file.write_text(text)
        keys(file, "revoke", "other")
        eventually(lambda: status(other) == 401)
        assert b"the key 'other' was revoked" in http(port, "GET", "/v2", headers=bearer(other)).body


def test_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "root")
    own, node, stranger = (authority.issue(name) for name in ("server", "node-1", "stranger"))
    file = tmp_path / "keys.yaml"
    file.write_text("certificates: [{match: 'CN=node-*', tenant: nodes, scopes: {simple: [infer, read]}}]\n")
    tls = [f"--grpc-{name}={path}" for name, path in zip(("server-cert", "server-key"), own, strict=True)]
    tls += [f"--grpc-root-cert={authority.certificate}", "--grpc-use-ssl-mutual=true", "--http-use-ssl-mutual=true"]
    with serving_here(EXAMPLES, options=[*tls, f"--auth-file={file}"]) as server:

        def curl(pair: Any, path: str, *more: str) -> tuple[str, str]:
            command = ["curl", "-s", "-w", "\n%{http_code}", "--cacert", str(authority.certificate)]
            command += ["--cert", str(pair.certificate), "--key", str(pair.key), *more]
            command.append(f"https://localhost:{server.http_port}{path}")
            body, _, code = subprocess.run(command, capture_output=True, text=True, check=True).stdout.rpartition("\n")
            return code, body

        assert curl(node, "/v2/models") == ("200", '{"models":["simple"]}')
        ones = {"name": "", "datatype": "INT32", "shape": [1, 16], "data": [1] * 16}
        body = json.dumps({"inputs": [{**ones, "name": "INPUT0"}, {**ones, "name": "INPUT1"}]})
        assert curl(node, "/v2/models/simple/infer", "-d", body)[0] == "200"
        code, text = curl(stranger, "/v2/models/simple/infer", "-d", body)
        assert (code, "the client certificate matches no rule in the" in text) == ("401", True)
        assert curl(node, "/v2/models", "-H", "x-api-key: wrong")[0] == "401"

        def call(pair: Any) -> Any:
            credentials = grpc.ssl_channel_credentials(
                authority.certificate.read_bytes(), pair.key.read_bytes(), pair.certificate.read_bytes()
            )
            with grpc.secure_channel(f"localhost:{server.grpc_port}", credentials) as opened:
                return stub(opened).ModelInfer(message(Ask(model="simple")), timeout=SECONDS)

        assert call(node).model_name == "simple"
        with pytest.raises(grpc.RpcError) as raised:
            call(stranger)
        assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED


# The hunt


def calls_with(server: ServerProcess, good: list[str], wrong: list[str]) -> list[str]:
    """What the server says to calls of every kind with each of the secrets, in each place.

    Few with wrong ones, whose answers wait longer and longer.
    """
    said: list[str] = []
    for secret in (*good, *wrong):
        said.append(repr(http(server.http_port, "GET", "/v2", headers={"Authorization": secret})))
        for headers in (bearer(secret), {"X-API-Key": secret}) if secret in good else ():
            for name in ("simple", "no_such_model"):
                body, more = binary_request(Ask(model=name))
                said.append(repr(http(server.http_port, "POST", infer_path(name), body, {**more, **headers})))
                said.append(repr(http(server.http_port, "POST", infer_path(name), b"{", headers)))
            for path in ("/v2", "/v2/models", "/console/failures", "/console/about", "/nosuch", "/v2/logging", "/docs"):
                said.append(repr(http(server.http_port, "GET", path, headers=headers)))
            for path in ("/v1/chat/completions", "/embed", "/v2/trace/setting"):
                said.append(repr(http(server.http_port, "POST", path, b"{}", headers)))
            said.append(repr(http(server.metrics_port, "GET", "/metrics", headers=headers)))
        both = {**bearer(secret), "X-API-Key": f"{secret}x"}
        said.append(repr(http(server.http_port, "GET", "/v2", headers=both)))
        said.append(repr(http(server.http_port, "GET", f"/v2?api_key={secret}")))
        with channel(server.grpc_port) as opened:
            for metadata in ([("authorization", f"Bearer {secret}")], [("x-api-key", secret), ("x-api-key", "x")]):
                for name in ("simple", "no_such_model"):
                    try:
                        stub(opened).ModelInfer(message(Ask(model=name)), metadata=metadata, timeout=SECONDS)
                    except grpc.RpcError as error:
                        said.append(f"{error.code()} {error.details()}")
    return said


def test_no_secret_is_told(tmp_path: Path) -> None:
    """Keys and tokens, right and wrong, are in no log, trace, page or answer, and in no list of processes."""
    mark = "c0ffee"
    file, log, traces = tmp_path / "keys.yaml", tmp_path / "log", tmp_path / "traces"
    user = keys(file, "add", "user", "--scope", "*=infer,read,control,admin")
    token = f"eyJhbGciOiJIUzI1NiJ9.{mark}-claims.{mark}-signature"
    options = [f"--auth-file={file}", f"--log-file={log}", "--log-verbose=9", "--access-log=all", "--request-ids=all"]
    options += ["--trace-config=level=TIMESTAMPS", "--trace-config=level=TENSORS", "--trace-config=rate=1"]
    options += [f"--trace-config=triton,file={traces}", "--grpc-header-forward-pattern=x-other"]
    with serving(EXAMPLES, options=options, environment={"MODSERVE_API_KEY": SINGLE}) as server:
        said = calls_with(server, [user, SINGLE], [f"msk_{mark}-wrong", token])
        events = ["curl", "-sN", "-H", f"x-api-key: {user}", f"http://{HOST}:{server.http_port}/console/events"]
        with subprocess.Popen(events, stdout=subprocess.PIPE, text=True) as stream:
            assert stream.stdout is not None
            said += [stream.stdout.readline() for _ in range(3)]
            stream.kill()
        command_line = Path(f"/proc/{server.pid}/cmdline").read_text()
        eventually(lambda: "no_such_model" in log.read_text())
    assert any("simple" in each for each in said)
    texts = {"answers": "\n".join(said), "ps": command_line, "output": server.log}
    texts |= {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert {"log", "traces"} <= {name.partition(".")[0] for name in texts}
    for secret in (user, user[4:], mark):
        assert [name for name, text in texts.items() if secret in text] == []
    listed = subprocess.run(
        [sys.executable, "-m", "modserve", "keys", "list", "--file", str(file)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert user not in listed.stdout


def test_a_key_is_no_option(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "modserve", "serve", "--example", f"--api-key={SINGLE}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "a key is no option, since lists of processes show options; set MODSERVE_API_KEY" in done.stderr
    assert SINGLE not in done.stderr
