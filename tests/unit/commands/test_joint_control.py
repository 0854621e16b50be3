"""Loads and unloads on several servers: on all of them, or on none."""

import itertools
import os
import signal
import threading
from collections.abc import Callable

import pytest
from scripted_servers import ScriptedModel, ScriptedServer, refusing, silent

from modserve.client.transport import CONFIG, INDEX, LOAD, UNLOAD, Operation
from modserve.commands import joint_control
from modserve.commands.joint_control import JointReport, on_all
from modserve.commands.model_state import ModelState, go_back, is_back, with_versions
from modserve.commands.remote_server import RemoteServer
from modserve.commands.server_set import ServerSet
from modserve.commands.terminal import Interruption

OLD = {"backend": "b", "max_batch_size": 4, "version_policy": {"latest": {"num_versions": 1}}}


def three() -> list[ScriptedServer]:
    """They serve version 1 of m with a configuration of their own, and have version 2 in the repository."""
    models = [ScriptedModel(("1", "2"), ("1",), dict(OLD)) for _ in range(3)]
    return [ScriptedServer(f"http://s{index}", {"m": model}) for index, model in enumerate(models)]


def load(server: RemoteServer) -> None:
    server.call(LOAD, "m")


def unload(server: RemoteServer) -> None:
    server.call(UNLOAD, "m")


def together(servers: list[ScriptedServer], call: Callable[[RemoteServer], None] = load) -> JointReport:
    return on_all(ServerSet(servers), "m", "loaded" if call is load else "unloaded", call, Interruption(print))


def ready(servers: list[ScriptedServer]) -> list[tuple[str, ...]]:
    return [server.models["m"].ready for server in servers]


def test_all() -> None:
    servers = three()
    report = together(servers)
    assert (report.done, report.clean, ready(servers)) == (True, True, [("2",)] * 3)
    assert {row.state for row in report.rows} == {"version 2 READY"}
    assert together(servers, unload).done
    assert ready(servers) == [()] * 3


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_none_where_one_refuses(failing: int) -> None:
    """The others have their version and configuration of before, though the repository has newer ones."""
    servers = three()
    servers[failing].on_call = refusing(LOAD, times=1)
    report = together(servers)
    assert (report.done, report.clean, ready(servers)) == (False, True, [("1",)] * 3)
    assert [row.outcome for row in report.rows] == [
        "failed" if index == failing else "loaded, and back" for index in range(3)
    ]
    assert {row.state for row in report.rows} == {"version 1 READY, as before"}
    assert report.rows[failing].reason == "not allowed"
    assert [server.models["m"].config["max_batch_size"] for server in servers] == [4] * 3


def test_a_model_that_was_not_loaded_is_unloaded_again() -> None:
    servers = three()
    servers[0].models["m"].ready = ()
    servers[2].on_call = refusing(LOAD)
    report = together(servers)
    assert (report.clean, ready(servers)) == (True, [(), ("1",), ("1",)])
    assert report.rows[0].state == "not loaded, as before"


def test_an_unload_that_one_refuses() -> None:
    servers = three()
    servers[1].on_call = refusing(UNLOAD)
    report = together(servers, unload)
    assert (report.done, report.clean, ready(servers)) == (False, True, [("1",)] * 3)


@pytest.mark.parametrize("trouble", [silent(), refusing(INDEX)])
def test_nothing_is_called_where_one_does_not_respond(trouble: Callable[[Operation], None]) -> None:
    servers = three()
    servers[1].on_call = trouble
    report = together(servers)
    assert (report.done, report.clean) == (False, True)
    assert [row.outcome for row in report.rows][::2] == ["not called"] * 2
    assert report.rows[1].outcome in ("no response", "refused")
    assert all("RepositoryModelLoad" not in server.calls for server in servers)


def test_another_repository() -> None:
    servers = three()
    servers[2].models = {"other": ScriptedModel()}
    report = together(servers)
    assert report.rows[2].reason == "model 'm' does not exist"
    assert ready(servers[:2]) == [("1",)] * 2
    assert report.clean


def test_a_call_without_a_response_is_made_undone() -> None:
    """The server may carry it out late: it is told to go back whatever it says now."""
    servers = three()
    servers[1].on_call = silent(LOAD, times=1)
    report = together(servers)
    assert (report.done, report.clean) == (False, True)
    assert servers[1].calls.count("RepositoryModelLoad") == 2
    assert servers[1].models["m"].config["version_policy"] == {"specific": {"versions": [1]}}


def test_a_server_that_vanishes_is_unknown() -> None:
    servers = three()

    def vanish(operation: Operation) -> None:
        if operation is LOAD:
            servers[1].on_call = silent()
            silent()(operation)

    servers[1].on_call = vanish
    report = together(servers)
    assert (report.done, report.clean) == (False, False)
    assert report.rows[1].state == "unknown (no response within 1 s); before: version 1 READY"
    assert (
        report.rows[1].reason
        == "no response within 1 s\nit may have changed, and cannot go back: no response within 1 s"
    )
    assert ready([servers[0], servers[2]]) == [("1",)] * 2


def test_one_that_cannot_go_back() -> None:
    servers = three()
    loads = itertools.count()

    def once(operation: Operation) -> None:
        if operation is LOAD and next(loads):
            refusing(LOAD)(operation)

    servers[0].on_call = once
    servers[2].on_call = refusing(LOAD)
    report = together(servers)
    assert (report.done, report.clean) == (False, False)
    assert report.rows[0].outcome == "loaded, not back"
    assert report.rows[0].state == "version 2 READY; before: version 1 READY"
    assert ready(servers) == [("2",), ("1",), ("1",)]


def test_a_hidden_configuration() -> None:
    """Then the repository's has to do, and the report says that the versions differ."""
    servers = three()
    for server in servers:
        server.on_call = refusing(CONFIG)
    assert go_back(servers[0], "m", ModelState(("1",))) == ModelState(("1",))
    servers[0].models["m"].ready = ("2",)
    assert not is_back(go_back(servers[0], "m", ModelState(("1",))), ModelState(("1",)))


def test_configurations_with_versions() -> None:
    policy = {"specific": {"versions": [1, 10]}}
    assert with_versions({"a": 1, "versionPolicy": {}}, ("1", "10")) == {"a": 1, "version_policy": policy}


def test_an_interrupt_waits_for_the_calls_and_goes_back(capsys: pytest.CaptureFixture[str]) -> None:
    servers = three()

    def on_call(operation: Operation) -> None:
        if operation is LOAD:
            servers[0].on_call = lambda later: None
            os.kill(os.getpid(), signal.SIGINT)

    servers[0].on_call = on_call
    with pytest.raises(KeyboardInterrupt):
        joint_control.run(ServerSet(servers), "m", "loaded", load)
    assert ready(servers) == [("1",)] * 3
    text = capsys.readouterr()
    assert text.out.count("loaded, and back") == 3
    assert "Ctrl-C again leaves them as they are" in text.err
    assert "m: not loaded: interrupted; no server has changed" in text.err


def test_a_second_interrupt_leaves_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    servers, heard, released = three(), threading.Event(), threading.Event()
    texts: list[str] = []

    def print_error(text: str, advice: str = "") -> None:
        texts.append(text)
        heard.set()

    def on_call(operation: Operation) -> None:
        if operation is LOAD:
            os.kill(os.getpid(), signal.SIGINT)
            assert heard.wait(30)
            os.kill(os.getpid(), signal.SIGINT)
            assert released.wait(30)

    monkeypatch.setattr(joint_control, "print_error", print_error)
    servers[0].on_call = on_call
    together_all = ServerSet(servers)
    with pytest.raises(KeyboardInterrupt):
        joint_control.run(together_all, "m", "loaded", load)
    released.set()
    together_all.close()
    assert "Ctrl-C again leaves them as they are" in texts[0]
    assert texts[1:] == ["m: servers are left as they are"]


def test_all_at_the_same_time() -> None:
    """As long as the slowest, not as all together: each waits for the others."""
    models = {"m": ScriptedModel()}
    servers = [ScriptedServer(f"http://s{index}", models) for index in range(20)]
    barrier = threading.Barrier(20)

    def on_call(operation: Operation) -> None:
        if operation is LOAD:
            barrier.wait(30)

    for server in servers:
        server.on_call = on_call
    assert together(servers).done
