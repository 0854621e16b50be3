"""What commands print of several servers."""

import json
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from scripted_servers import ScriptedModel, ScriptedServer, refusing, silent

from modserve.client.input_values import Result
from modserve.client.transport import DRAIN, INDEX, STATISTICS
from modserve.commands import drain, models, several_indexes, several_status, status, terminal
from modserve.commands.doctor import security_probe
from modserve.commands.doctor.checks import Check
from modserve.commands.errors import RefusedError, UnreachableError
from modserve.commands.infer import several
from modserve.commands.infer.several import difference
from modserve.commands.server_set import Outcome, ServerSet
from modserve.commands.several_indexes import ServerIndex, merge
from modserve.commands.status_report import IndexRow, VersionUsage, server_status
from modserve.core.tensors.tensor import Tensor


def three() -> list[ScriptedServer]:
    servers = [ScriptedServer(f"http://s{index}", {"m": ScriptedModel(ready=("1",))}) for index in range(3)]
    for index, server in enumerate(servers):
        success = {"count": index, "ns": index * 2_000_000}
        row = {"name": "m", "version": "1", "inference_stats": {"success": success, "fail": {"count": 1}}}
        server.counts = {"model_stats": [row]}
    return servers


def test_status_of_each_and_all() -> None:
    servers = three()
    servers[0].on_call = silent()
    servers[2].on_call = refusing(STATISTICS)
    outcomes = ServerSet(servers).call(server_status)
    assert not several_status.all_ready(outcomes)
    assert list(several_status.lines(outcomes)) == [
        "server     state        versions  requests  failed  mean",
        "---------  -----------  --------  --------  ------  ----",
        "http://s0  no response  -                -       -     -",
        "http://s1  ready        1 READY          1       1  2 ms",
        "http://s2  ready        1 READY          -       -     -",
        "3 servers  2 ready      2 READY          1       1  2 ms",
        "\nhttp://s0 does not respond:",
        "    no response within 1 s",
        "\nhttp://s2: not shown: not allowed",
    ]
    body = several_status.document(outcomes)
    assert (body["ready"], body["requests"], body["failures"]) == (False, 1, 1)
    assert body["servers"][0] == {"url": "http://s0", "error": "no response within 1 s"}
    assert several_status.all_ready(outcomes[1:])


@pytest.mark.parametrize("command", [status, models])
def test_a_name_that_stands_for_other_servers_after_a_while(
    command: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With ``--watch``: none at first, then one, then three, and without those that left in the end."""
    servers = {server.url: server for server in three()}
    now: list[str] = []
    texts: list[str] = []

    def lookup(options: Namespace) -> list[str]:
        if not now:
            raise UnreachableError("the name 'svc' has no address")
        return now

    def again(seconds: float, draw: Callable[[], tuple[int, str]]) -> int:
        with pytest.raises(UnreachableError, match="the name 'svc' has no address"):
            draw()
        for urls in (["http://s0"], list(servers), ["http://s1", "http://s2"]):
            now[:] = urls
            texts.append(draw()[1])
        return 0

    monkeypatch.setattr(command, "destinations", lookup)
    monkeypatch.setattr(command, "connect_all", lambda places: ServerSet([servers[url] for url in places]))
    monkeypatch.setattr(command, "again", again)
    name = command.__name__.rpartition(".")[2]
    assert terminal.run(name, ["--watch=1", "--json", "--url=dns:///svc"]) == 0
    expected = [["http://s0"], list(servers), ["http://s1", "http://s2"]]
    if command is status:
        bodies = [json.loads(text) for text in texts]
        assert [[row["url"] for row in body.get("servers", [body])] for body in bodies] == expected
    else:
        assert [[url for url in servers if url in text] for text in texts] == [[], *expected[1:]]


def test_drains(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Of all at the same time; one alone says what it has always said."""
    servers = three()
    servers[1].drained = {"drained": False, "in_flight": {"m": 2}, "seconds": 30.0}
    servers[2].on_call = refusing(DRAIN)
    monkeypatch.setattr(drain, "connect_all", lambda places: ServerSet(servers[: len(places)]))
    assert terminal.run("drain", ["--url=http://s0,http://s1,http://s2"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "server     outcome",
        "---------  " + "-" * 74,
        "http://s0  drained, after 2 ms",
        "http://s1  not drained: --exit-timeout-secs is over, and in flight are 2 of model 'm'",
        "http://s2  not drained: it refuses the call",
        "    not allowed",
    ]
    assert terminal.run("drain", ["--url=http://s0"]) == 0
    assert capsys.readouterr().out == "drained, after 2 ms\n"
    servers[0].drained = {"drained": False, "in_flight": {}, "seconds": 30.0}
    assert terminal.run("drain", ["--url=http://s0"]) == 1
    assert "in flight are streams without a request" in capsys.readouterr().out


def test_a_drain_is_a_call_of_http(capsys: pytest.CaptureFixture[str]) -> None:
    assert terminal.run("drain", ["--url=http://s0,grpc://s1:8001"]) == 2
    assert "this call is HTTP, and grpc://s1:8001 is not" in capsys.readouterr().err


def rows(*rows: tuple[str, str, str]) -> ServerIndex:
    return ServerIndex([IndexRow(*row, "why" if row[2] == "UNAVAILABLE" else "") for row in rows], {})


def outcomes(*indexes: "ServerIndex | Exception") -> Sequence[Outcome[ServerIndex]]:
    made: list[Outcome[ServerIndex]] = []
    for number, index in enumerate(indexes):
        server = ScriptedServer(f"http://s{number}", {})
        if isinstance(index, UnreachableError):
            made.append(Outcome(server, 0.0, error=index))
        else:
            assert isinstance(index, ServerIndex)
            made.append(Outcome(server, 0.0, index))
    return made


def test_indexes_that_differ() -> None:
    """By a model, a version and a state."""
    servers = outcomes(
        rows(("a", "1", "READY"), ("b", "1", "READY"), ("c", "1", "READY"), ("d", "", "")),
        rows(("a", "1", "READY"), ("b", "2", "READY"), ("c", "1", "UNAVAILABLE"), ("d", "", "")),
        rows(("a", "1", "READY"), ("b", "", ""), ("c", "1", "READY"), ("d", "", "")),
        UnreachableError("refused"),
    )
    table_rows = merge(servers)
    assert [(each.model, each.version, each.ready, each.same) for each in table_rows] == [
        ("a", "1", 3, True),
        ("b", "1", 1, False),
        ("b", "2", 1, False),
        ("c", "1", 2, False),
        ("d", "", 0, True),
    ]
    assert list(several_indexes.lines(servers, table_rows)) == [
        "model  version   ready  requests  failed  mean",
        "-----  -------  ------  --------  ------  ----",
        "a      1        3 of 3         0       0     -",
        "b      1        1 of 3         0       0     -",
        "    http://s0: READY",
        "    http://s1: not loaded",
        "    http://s2: not loaded",
        "b      2        1 of 3         0       0     -",
        "    http://s0: not loaded",
        "    http://s1: READY",
        "    http://s2: not loaded",
        "c      1        2 of 3         0       0     -",
        "    http://s0: READY",
        "    http://s1: UNAVAILABLE: why",
        "    http://s2: READY",
        "d      -        0 of 3         0       0     -",
        "\nhttp://s3 does not respond:",
        "    refused",
        "\n2 models differ between 3 servers",
    ]
    body = several_indexes.document(servers, table_rows)
    assert body["same"] is False
    assert body["servers"][3] == {"url": "http://s3", "error": "refused"}
    assert merge(servers, ["a"])[0].model == "a"
    assert len(merge(servers, ["a"])) == 1


def test_servers_whose_calls_are_at_an_admin_port() -> None:
    server = ScriptedServer("http://s0", {})
    refused: list[Outcome[ServerIndex]] = [Outcome(server, 0.0, error=RefusedError("Not Found", "name the other port"))]
    assert list(several_indexes.lines(refused, []))[:3] == [
        "\nhttp://s0 refuses the call:",
        "    Not Found",
        "    name the other port",
    ]


def test_another_repository() -> None:
    servers = outcomes(rows(("a", "1", "READY")), rows(("b", "", "")))
    assert [dict(each.states) for each in merge(servers)] == [
        {"http://s0": "READY", "http://s1": "not there"},
        {"http://s0": "not there", "http://s1": "not loaded"},
    ]


def test_the_same_everywhere() -> None:
    servers = outcomes(rows(("a", "1", "READY")), rows(("a", "1", "READY")))
    assert list(several_indexes.lines(servers, merge(servers)))[-1] == "\nno model differs between 2 servers"


def test_the_use_of_all() -> None:
    index = ServerIndex([IndexRow("a", "1", "READY", "")], {("a", "1"): VersionUsage(2, total_ns=4_000_000)})
    [row] = merge(outcomes(index, index))
    assert row.usage.requests == 4
    assert "a      1        2 of 2         4       0  2 ms" in list(
        several_indexes.lines(outcomes(index, index), [row])
    )


def test_models_that_no_server_has(capsys: pytest.CaptureFixture[str]) -> None:
    options = Namespace(names=["nosuch"], json=True)
    with pytest.raises(RefusedError, match="model 'nosuch' does not exist"):
        models._draw_all(ServerSet(three()), options)
    servers = three()
    servers[0].on_call = refusing(INDEX)
    code, text = models._draw_all(ServerSet(servers), Namespace(names=[], json=True))
    assert (code, json.loads(text)["servers"][0]["error"]) == (1, "not allowed")


# Inferences


def floats(values: object) -> Any:
    return np.asarray(values, np.float32)


def integers(values: object) -> Any:
    return np.asarray(values, np.int32)


def result(version: int = 1, **arrays: object) -> Result:
    return Result("m", version, {name: Tensor.from_array(np.asarray(each)) for name, each in arrays.items()})


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (result(a=floats([1, 2])), ""),
        (result(a=floats([1, 2.5])), "a differs by up to 0.5"),
        (result(a=floats([[1, 2]])), "a is FP32 [1, 2], not FP32 [2]"),
        (result(b=floats([1, 2])), "a is only in one response, b is only in one response"),
    ],
)
def test_differences(other: Result, text: str) -> None:
    assert difference(other, result(a=floats([1, 2]))) == text


def test_differences_of_other_types() -> None:
    assert difference(result(a=integers([1, 2])), result(a=integers([1, 3]))) == "a differs in 1 of 2 elements"
    texts = [Tensor.from_array(np.array([text], object)) for text in (b"x", b"y")]
    assert (
        difference(Result("m", 1, {"a": texts[0]}), Result("m", 1, {"a": texts[1]})) == "a differs in 1 of 1 elements"
    )
    nan = result(a=floats([np.nan]))
    assert difference(nan, nan) == ""


def test_responses_of_several() -> None:
    servers = three()
    responses = [
        Outcome(servers[0], 0.001, error=UnreachableError("cannot reach a server at http://s0: refused")),
        Outcome(servers[1], 0.002, result(a=integers([1]))),
        Outcome(servers[2], 0.003, result(2, a=integers([2]))),
    ]
    lines = list(several.text_lines(responses))
    assert lines[0] == "m version 1, after 2 ms"
    assert lines[-4:] == [
        "http://s0  -        1 ms   failed",
        "    refused",
        "http://s1  1        2 ms   these",
        "http://s2  2        3 ms   a differs in 1 of 1 elements",
    ]
    bodies = [json.loads(line) for line in several.json_lines(responses)]
    assert [body["url"] for body in bodies] == [server.url for server in servers]
    assert bodies[0]["error"].endswith("refused")
    assert bodies[2]["outputs"][0]["data"] == [2]


def test_outputs_of_one_server_only(capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("--output=a.npy", "--stream"):
        assert terminal.run("infer", ["m", "--url=a,b", word]) == 2
        assert "is for one server, and '--url' or MODSERVE_URL names 2" in capsys.readouterr().err


# Doctor


def test_the_doctor_of_several(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def all_checks(place: object) -> list[Check]:
        if str(place) == "http://b:8000":
            raise UnreachableError("cannot reach http://b:8000: refused")
        return [Check("ok", "TLS", "off")]

    monkeypatch.setattr(security_probe, "all_checks", all_checks)
    assert terminal.run("doctor", ["--security", "--url=a,b"]) == 1
    assert capsys.readouterr().out == (
        "http://a:8000:\nok       TLS     off\n\n"
        "http://b:8000:\nproblem  server  cannot reach http://b:8000: refused\n\n"
        "1 ok, 0 warnings, 1 problem\n"
    )
    assert terminal.run("doctor", ["--security", "--url=a,b", "--json"]) == 1
    assert [row["server"] for row in json.loads(capsys.readouterr().out)] == ["http://a:8000", "http://b:8000"]
