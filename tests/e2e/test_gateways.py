"""Envoy, nginx and HAProxy before three servers, with the configurations in deploy/gateways: clients, then chaos.

The chaos comes last, and starts servers again; the other tests use the same three.
"""

import functools
import http.client
import json
import queue
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import foreign_clients
import grpc
import numpy as np
import pytest
import test_client_flavours as flavours
import tritonclient.grpc
import tritonclient.http
from authority import Authority
from repositories import EXAMPLES, write_accumulator
from server_here import serving_here
from server_process import eventually
from tritonclient.utils import InferenceServerException
from wire import HOST, SECONDS, Ask, Input, binary_request, infer_path, message, stub
from wire import http as send

import gateway_balancing
import gateway_stage
import gateways
import modserve
from gateway_stage import NAMES, Gateway, ModelServer
from modserve.client.address import parse
from modserve.commands.doctor import security_probe
from modserve.commands.doctor.checks import Check

LATE = 60_000
"""Milliseconds before a response that no test waits for."""
SECRET = "a-secret-for-a-test"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ModelServer]]:
    foreign_clients.install()
    sums = tmp_path_factory.mktemp("sums")
    write_accumulator(
        sums, "sum", "oldest { max_candidate_sequences: 200 }", "max_sequence_idle_microseconds: 60000000"
    )
    with gateway_stage.servers(tmp_path_factory.mktemp("servers"), [EXAMPLES, sums], ["--server-timing=true"]) as three:
        yield three


@pytest.fixture(scope="module")
def running(servers: list[ModelServer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Gateway]]:
    addresses = [(server.http_port, server.grpc_port) for server in servers]
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                gateway_stage.gateway(name, addresses, tmp_path_factory.mktemp(name), gateways.EDITS[name])
            )
            for name in NAMES
        }


@pytest.fixture(scope="module", params=NAMES)
def gateway(request: pytest.FixtureRequest, running: dict[str, Gateway]) -> Gateway:
    return running[request.param]


@pytest.fixture(scope="module")
def server(gateway: Gateway) -> Gateway:
    """What the tests of clients take for the server."""
    return gateway


# --- the clients' own tests, through a gateway ------------------------------------------------------------------------

client = flavours.client
images = flavours.images
test_is_up = flavours.test_is_up
test_server_metadata = flavours.test_server_metadata
test_model_metadata = flavours.test_model_metadata
test_simple = flavours.test_simple
test_request_id_comes_back = flavours.test_request_id_comes_back
test_versions_of_digits = flavours.test_versions_of_digits
test_asynchronous_calls = flavours.test_asynchronous_calls_of_the_synchronous_clients
test_inference_errors = flavours.test_inference_errors
test_errors_of_the_other_calls = flavours.test_errors_of_the_other_calls
test_a_client_survives_its_errors = flavours.test_a_client_survives_its_errors


# --- what gateways like to change -------------------------------------------------------------------------------------


def test_errors_and_statuses_are_the_servers_own(gateway: Gateway, servers: list[ModelServer]) -> None:
    calls: list[tuple[str, str, bytes, dict[str, str]]] = [
        ("POST", "/v2/models/nosuch/infer", b"{}", {}),
        ("POST", "/v2/models/simple/infer", b"{", {}),
        ("POST", "/v2/models/simple/infer", b'{"inputs": []}', {}),
        ("POST", "/v2/models/simple/infer", b"\x1f\x8b", {"Content-Encoding": "gzip"}),
        ("GET", "/v2/models/simple/infer", b"", {}),
        ("GET", "/v2/models/nosuch/ready", b"", {}),
        ("GET", "/v2/nosuch", b"", {}),
        ("POST", "/v1/models/nosuch:predict", b'{"instances": [1]}', {}),
        ("POST", "/v1/chat/completions", b'{"model": "nosuch", "messages": []}', {}),
        ("GET", "/v2/models/simple", b"", {}),
    ]
    for method, path, body, headers in calls:
        responses = [exchange(port, method, path, body, headers) for port in (servers[0].http_port, gateway.http_port)]
        assert responses[0] == responses[1], f"{method} {path}"


def exchange(port: int, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, str | None, bytes]:
    connection = http.client.HTTPConnection(HOST, port, timeout=SECONDS)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.headers["Content-Type"], response.read()
    finally:
        connection.close()


def test_trailers(gateway: Gateway) -> None:
    with grpc.insecure_channel(f"{HOST}:{gateway.grpc_port}") as channel:
        _, call = stub(channel).ModelInfer.with_call(message(Ask()), timeout=SECONDS)
        trailers = dict(call.trailing_metadata())
        assert "compute_infer;dur=" in trailers["server-timing"]
        with pytest.raises(grpc.RpcError) as raised:
            stub(channel).ModelInfer(message(Ask(model="nosuch")), timeout=SECONDS)
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND
    assert raised.value.details() == "Request for unknown model: 'nosuch' is not found"


def test_events_arrive_one_by_one(gateway: Gateway) -> None:
    """The first while the second is a minute away."""
    body = json.dumps({"IN": [4, 5], "DELAY": [0, LATE], "WAIT": [0]})
    for call, key in (("generate_stream", "OUT"), ("infer_stream", "outputs")):
        with closing(http.client.HTTPConnection(HOST, gateway.http_port, timeout=SECONDS)) as connection:
            connection.request("POST", f"/v2/models/repeat/{call}", body if key == "OUT" else infer_body())
            response = connection.getresponse()
            assert response.headers["Content-Type"].startswith("text/event-stream")
            assert key in json.loads(response.readline().removeprefix(b"data: "))


def infer_body() -> str:
    values = {"IN": ("INT32", [4, 5]), "DELAY": ("UINT32", [0, LATE]), "WAIT": ("UINT32", [0])}
    tensors = [
        {"name": name, "datatype": kind, "shape": [len(data)], "data": data} for name, (kind, data) in values.items()
    ]
    return json.dumps({"inputs": tensors})


def test_messages_of_a_stream_in_both_directions(gateway: Gateway) -> None:
    """Each is answered before the next is sent, and the stream ends with a status."""
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with grpc.insecure_channel(f"{HOST}:{gateway.grpc_port}") as channel:
        call = stub(channel).ModelStreamInfer(iter(requests.get, None), timeout=SECONDS)
        for number in range(3):
            requests.put(message(Ask(id=str(number))))
            assert next(call).infer_response.id == str(number)
        requests.put(message(Ask(model="nosuch")))
        assert next(call).error_message == "Request for unknown model: 'nosuch' is not found"
        requests.put(None)
        assert list(call) == []
        assert call.code() is grpc.StatusCode.OK


def test_streams_may_be_silent_for_longer_than_a_try(running: dict[str, Gateway]) -> None:
    """All at once, since each waits."""
    silence = {"IN": [4, 5], "DELAY": [0, 2500], "WAIT": [0]}
    with ExitStack() as stack:
        streams = {
            (name, scheme): stack.enter_context(modserve.connect(f"{scheme}://{HOST}:{port}")).stream("repeat", silence)
            for name, each in running.items()
            for scheme, port in (("http", each.http_port), ("grpc", each.grpc_port))
        }
        for expected in ([4], [5]):
            assert {place: [next(stream).plain("OUT")] for place, stream in streams.items()} == dict.fromkeys(
                streams, expected
            )
        assert [list(stream) for stream in streams.values()] == [[]] * len(streams)


def test_versions_behind_one_name(gateway: Gateway) -> None:
    """Only the last server has version 2: its answers are right, and the others say that they do not have it."""
    inputs = {"INPUT0": np.array([[1, 2]], np.int32)}
    outcomes: set[tuple[int, int | str | None]] = set()
    for url in (f"http://{HOST}:{gateway.http_port}", f"grpc://{HOST}:{gateway.grpc_port}"):
        with modserve.connect(url) as client:
            for version in [1, 2] * 9:
                try:
                    result = client.infer("versioned", inputs, version=version)
                except modserve.ClientError as error:
                    outcomes.add((version, error.message))
                else:
                    assert result["OUTPUT0"].tolist() == [[version, 2 * version]]
                    outcomes.add((version, result.version))
    missing = "Request for unknown model: 'versioned' version 2 is not found"
    assert outcomes == {(1, 1), (2, 2), (2, missing)}


def test_long_tensors(gateway: Gateway) -> None:
    """4 MB there and back: more than gateways buffer, and than their limits are by default."""
    count = 1_000_000
    raw = np.arange(count, dtype=np.int32).tobytes()
    ask = Ask((Input("INPUT0", "INT32", (1, count), raw),), model="scaled")
    body, headers = binary_request(ask)
    response = send(gateway.http_port, "POST", infer_path("scaled"), body, headers)
    assert response.status == 200
    assert response.body.endswith(raw)
    assert len(response.body) < len(raw) + 1000
    sizes = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"{HOST}:{gateway.grpc_port}", sizes) as channel:
        assert stub(channel).ModelInfer(message(ask), timeout=SECONDS).raw_output_contents == [raw]


def test_long_headers(gateway: Gateway) -> None:
    """As long as the server takes them."""
    response = send(gateway.http_port, "GET", "/v2", headers={"X-Long": "x" * 50_000})
    assert response.status == 200
    with grpc.insecure_channel(f"{HOST}:{gateway.grpc_port}") as channel:
        stub(channel).ModelInfer(message(Ask()), timeout=SECONDS, metadata=[("x-long", "x" * 12_000)])


def test_control_is_refused(gateway: Gateway, servers: list[ModelServer]) -> None:
    """Also by Triton's clients, with a text that says what to do; the servers have seen nothing."""
    for module, port in ((tritonclient.http, gateway.http_port), (tritonclient.grpc, gateway.grpc_port)):
        with (
            module.InferenceServerClient(f"{HOST}:{port}") as client,
            pytest.raises(
                InferenceServerException, match="is for operators, or about one server: send it to each server itself"
            ),
        ):
            client.unload_model("digits")
    assert all(send(server.http_port, "GET", "/v2/models/digits/ready").status == 200 for server in servers)


def test_the_doctor_notices_the_gateway(gateway: Gateway) -> None:
    """By its headers, or by the servers, of which several respond."""
    address = parse(f"http://{HOST}:{gateway.http_port}")
    rows: list[Check] = []

    def is_noticed() -> bool:
        rows[:] = [each for each in security_probe.all_checks(address) if each.name == "gateway"]
        return bool(rows)

    gateway_stage.until(is_noticed, "HAProxy has looked at all servers, and sends calls to several")
    (row,) = rows
    if gateway.name == "haproxy":
        assert (row.level, row.advice) == ("ok", "")
        assert "workers of one server, or several servers behind a gateway" in row.text
    else:
        assert row.level == "warning"
        assert row.text.startswith(f"calls pass {gateway.name}")
        assert "reach one server" in row.advice


# --- sequences --------------------------------------------------------------------------------------------------------


MANY = 36
"""So many sequences that each server gets some: that one of three gets none has a probability of a millionth."""


class Sequence:
    """One, over either protocol, with the header that keeps it at one server."""

    def __init__(self, gateway: Gateway, over_grpc: bool, number: int) -> None:
        self._module = tritonclient.grpc if over_grpc else tritonclient.http
        port = gateway.grpc_port if over_grpc else gateway.http_port
        self._client = self._module.InferenceServerClient(f"{HOST}:{port}")
        self._number = number

    def send(self, element: int, **position: bool) -> int:
        tensor = self._module.InferInput("INPUT", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.array([[element]], np.int32))
        headers = {"x-sequence-id": str(self._number)}
        result = self._client.infer("sum", [tensor], sequence_id=self._number, headers=headers, **position)
        return int(result.as_numpy("OUTPUT")[0, 0])

    def close(self) -> None:
        self._client.close()


@contextmanager
def sequences(gateway: Gateway, count: int, first: int) -> Iterator[list[Sequence]]:
    opened = [Sequence(gateway, bool(number % 2), first + number) for number in range(count)]
    try:
        yield opened
    finally:
        for each in opened:
            each.close()


def test_each_sequence_stays_with_its_server(gateway: Gateway, servers: list[ModelServer]) -> None:
    before = [server.executions("sum") for server in servers]
    with sequences(gateway, MANY, 100) as opened:
        for step, position in ((1, {"sequence_start": True}), (2, {}), (3, {"sequence_end": True})):
            sums = [each.send(step, **position) for each in opened]
            assert sums == [step * (step + 1) // 2] * MANY
    after = [server.executions("sum") for server in servers]
    assert all(count > earlier for count, earlier in zip(after, before, strict=True)), "all servers have some"


# --- TLS to the servers, and keys -------------------------------------------------------------------------------------


def tls_edits(name: str, directory: Path) -> dict[str, str]:
    """What the commands in the documentation make of the configuration, as edits of its lines."""
    page = (gateway_stage.ROOT / "docs" / "gateways.md").read_text()
    (command,) = re.findall(rf"^(sed .*{re.escape(gateway_stage.FILES[name])}) > .*$", page, re.MULTILINE)
    done = subprocess.run(command, shell=True, check=True, capture_output=True, text=True, cwd=gateway_stage.ROOT)
    before = (gateway_stage.CONFIGURATIONS / gateway_stage.FILES[name]).read_text()
    assert done.stdout != before
    return {before: done.stdout, "/etc/modserve/ca.pem": str(directory / "authority.pem")}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Path]]:
    """A server with TLS and a key at both ports."""
    directory = tmp_path_factory.mktemp("certificates")
    pair = Authority(directory, "authority").issue("server")
    options = ["--http-use-ssl=true", "--grpc-use-ssl=true"]
    options += [f"--{port}-server-cert={pair.certificate}" for port in ("http", "grpc")]
    options += [f"--{port}-server-key={pair.key}" for port in ("http", "grpc")]
    with serving_here(EXAMPLES, options=options, environment={"MODSERVE_API_KEY": SECRET}) as server:
        yield server, directory


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_the_program_has_no_complaint(tmp_path: Path, name: str, tls: bool) -> None:
    Authority(tmp_path, "authority")
    file = tmp_path / gateway_stage.FILES[name]
    addresses = [(gateway_stage.free_port(), gateway_stage.free_port())] * gateway_stage.SERVER_COUNT
    file.write_text(
        gateway_stage.rendered(name, addresses, addresses[0], tmp_path, tls_edits(name, tmp_path) if tls else {})
    )
    done = gateway_stage.verdict(name, file)
    assert done.returncode == 0, done.stdout
    assert not re.search(r"(?i)\bwarn", done.stdout), done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_tls_to_the_servers_and_keys_of_clients(secured: tuple[Any, Path], tmp_path: Path, name: str) -> None:
    server, directory = secured
    addresses = [(server.http_port, server.grpc_port)] * gateway_stage.SERVER_COUNT
    inputs = {"INPUT0": np.ones((1, 16), np.int32), "INPUT1": np.ones((1, 16), np.int32)}
    with gateway_stage.gateway(name, addresses, tmp_path / name, tls_edits(name, directory)) as gateway:
        for url in (f"http://{HOST}:{gateway.http_port}", f"grpc://{HOST}:{gateway.grpc_port}"):
            with modserve.connect(url, headers={"authorization": f"Bearer {SECRET}"}) as with_key:
                assert with_key.infer("simple", inputs)["OUTPUT0"].tolist() == [[2] * 16]
            with (
                modserve.connect(url) as without,
                pytest.raises(modserve.ClientError, match=r"^this call needs a key: send it as"),
            ):
                without.infer("simple", inputs)
    assert Authority(tmp_path, "authority").certificate == tmp_path / "authority.pem"
    distrustful = gateway_stage.gateway(name, addresses, tmp_path / "wrong", tls_edits(name, tmp_path), seconds=2)
    with pytest.raises(TimeoutError, match=f"{name} answers"), distrustful:
        pass


# --- chaos ------------------------------------------------------------------------------------------------------------


def test_a_server_that_is_lost_in_the_middle_of_sequences(
    running: dict[str, Gateway], servers: list[ModelServer]
) -> None:
    """Its sequences end with a clear error; those of the others go on, and no sum is wrong."""
    with ExitStack() as stack:
        opened = {
            name: stack.enter_context(sequences(each, MANY, 1000 * number))
            for number, (name, each) in enumerate(running.items(), 1)
        }
        for each in opened.values():
            assert [sequence.send(1, sequence_start=True) for sequence in each] == [1] * MANY
        servers[0].program.signal(signal.SIGKILL)
        servers[0].program.wait()
        try:
            for name, each in opened.items():
                errors = []
                for sequence in each:
                    try:
                        assert sequence.send(1, sequence_end=True) == 2, name
                    except InferenceServerException as error:
                        errors.append(error.message())
                        eventually(functools.partial(is_forgotten, sequence))
                assert 0 < len(errors) < MANY, name
                assert all("gateway: " in text or "START flag" in text for text in errors), errors
        finally:
            servers[0].start()
            servers[0].wait_until_ready()


def is_forgotten(sequence: Sequence) -> bool:
    """Another server has the request, which knows nothing of the sequence."""
    with pytest.raises(InferenceServerException) as raised:
        sequence.send(1)
    return "must specify the START flag" in raised.value.message()


def test_chaos(servers: list[ModelServer], tmp_path: Path) -> None:
    """What benchmarks/gateways.py does, with fewer requests, and with all gateways at once."""
    # A busy machine may need more than 2 s for a request to the slow server.
    edits = {
        name: {before: after.replace("2s", "4s") for before, after in gateways.EDITS[name].items()} for name in NAMES
    }
    outcomes = gateways.run(NAMES, servers, tmp_path, answers=4, pause_s=0.08, stops=1, edits=edits)
    for name in NAMES:
        assert gateways.faults(outcomes[name]) == [], name
        assert list(outcomes[name]) == list(gateways.EVENTS)
        frozen = outcomes[name]["SIGSTOP (frozen)"].tallies
        assert all(tally.right for tally in frozen.values())
        versions = outcomes[name]["another version"].note
        assert re.fullmatch(r"version 1: \d+, version 2: \d+", versions)
        slow = outcomes[name]["slow server"]
        assert sum(tally.right for tally in slow.tallies.values()) > 0


@pytest.fixture(scope="module")
def reporting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ModelServer]]:
    with gateway_stage.servers(tmp_path_factory.mktemp("reporting"), options=["--orca=text"]) as three:
        yield three


def test_envoy_weighs_servers_by_their_load_reports(reporting: list[ModelServer], tmp_path: Path) -> None:
    """A slow server gets a third of the requests in turn, and almost none by its reports."""
    shares = {
        name: gateway_balancing.measure(reporting, tmp_path / name, policy, learn_s, 2.0, 0.02).share
        for name, policy, learn_s in (
            ("turns", "lb_policy: ROUND_ROBIN", 0.0),
            ("reports", gateway_balancing.load_reports(), 3.0),
        )
    }
    assert shares["turns"] > 0.25
    assert shares["reports"] < 0.1


class WeighingClient:
    """That of the documentation, of several threads, before these servers."""

    def __init__(self, servers: list[ModelServer], **policy: object) -> None:
        page = gateway_balancing.PAGE.read_text()
        (source,) = re.findall(r"^```python\n# weighted.py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        addresses = ",".join(f"{HOST}:{server.grpc_port}" for server in servers)
        names: dict[str, Any] = {}
        source = source.replace("dns:///modserve.svc:8001", f"ipv4:{addresses}")
        exec(
            source.replace("policy = {", f"more = {policy!r}\npolicy = {{").replace('"0.5s"}', '"0.5s", **more}'), names
        )
        self._client = names["client"]
        self._servers = servers
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._send) for _ in range(4)]

    def __enter__(self) -> "WeighingClient":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._client.close()

    def _send(self) -> None:
        tensor = tritonclient.grpc.InferInput("INPUT0", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.array([[1]], np.int32))
        while not self._over.wait(0.01):
            self._client.infer("paced", [tensor], client_timeout=SECONDS)

    def counts(self, least: int) -> list[int]:
        """How many requests each server answers, of at least so many."""
        before = [server.executions("paced") for server in self._servers]

        def since() -> list[int]:
            return [server.executions("paced") - earlier for server, earlier in zip(self._servers, before, strict=True)]

        eventually(lambda: sum(since()) >= least)
        return since()


@pytest.mark.parametrize("policy", [{}, {"enableOobLoadReport": True, "oobReportingPeriod": "0.2s"}])
def test_grpc_clients_weigh_servers_by_their_load_reports(
    reporting: list[ModelServer], policy: dict[str, object]
) -> None:
    """By trailers, and by the service: after some seconds, almost nothing goes to the slow server."""
    with WeighingClient(reporting, **policy) as client:
        eventually(lambda: client.counts(50)[-1] < 3)
