"""What Ray is told of an application, and what cannot be asked for."""

import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from modserve import ModserveError, cli, ray
from modserve.commands.ray import reason
from modserve.core.pip_command import pip_install
from modserve.ray.application import check_installed, deployment_options, make_settings
from modserve.ray.scaling import PendingPolicy, replicas
from modserve.ray.sessions import MODEL_HOMES, candidates, owner, session_id

REPOSITORY = "model_repository"


@pytest.fixture(autouse=True)
def _absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray.serve", None)


def test_without_ray_the_message_says_how_to_install_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModserveError, match=re.escape(f"Ray Serve is not installed: {pip_install('ray')}")):
        check_installed()
    with pytest.raises(ModserveError, match="not installed"):
        ray.app(REPOSITORY, deployment={"num_replicas": 2})
    with pytest.raises(ModserveError, match="not installed"):
        ray.build({"model_repository": REPOSITORY})
    assert cli.main(["ray", "deploy", "--model-repository", REPOSITORY]) == 1
    assert f"Ray Serve is not installed: {pip_install('ray')}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"workers": 2}, "workers cannot be set on Ray: it has replicas instead; set num_replicas"),
        ({"audit_log": "audit.json"}, "audit_log cannot be set on Ray: its proxies log the calls"),
        ({"nosuch": 1}, "options of the server: there is no setting 'nosuch'$"),
    ],
)
def test_options_that_have_no_effect_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ModserveError, match=text):
        make_settings(REPOSITORY, options)


def test_something_has_to_be_served() -> None:
    with pytest.raises(ModserveError, match="no model repository given"):
        make_settings("", {})


@pytest.mark.parametrize("target", [0.0, -1.0])
def test_a_target_is_above_zero(target: float) -> None:
    with pytest.raises(ModserveError, match="expected a number above 0"):
        ray.app(REPOSITORY, target_pending=target)


@pytest.mark.parametrize("name", ["request_router_config", "deployment_actors"])
def test_what_keeps_replicas_together_is_not_for_users(name: str) -> None:
    with pytest.raises(ModserveError, match=f"deployment option '{name}' cannot be set"):
        deployment_options({name: {}}, 4)


def test_an_autoscaling_configuration_gets_our_policy_unless_it_has_one() -> None:
    options = deployment_options({"autoscaling_config": {"max_replicas": 3}}, 2.5)
    assert options["autoscaling_config"] == {
        "max_replicas": 3,
        "policy": {"policy_function": "modserve.ray.scaling:PendingPolicy", "policy_kwargs": {"target_pending": 2.5}},
    }
    own = {"policy": {"policy_function": "mine:policy"}}
    assert deployment_options({"autoscaling_config": own}, 2.5)["autoscaling_config"] == own
    assert deployment_options({"num_replicas": 3}, 2.5)["num_replicas"] == 3


@pytest.mark.parametrize(("pending", "count"), [(0, 1), (4, 1), (4.1, 2), (8, 2), (9, 3)])
def test_replicas_by_pending_requests(pending: float, count: int) -> None:
    assert replicas(pending, 4) == count


def test_the_policy_adds_up_what_replicas_report() -> None:
    context = SimpleNamespace(aggregated_metrics={"pending": {"a": 7.0, "b": 2.0}}, target_num_replicas=2)
    assert PendingPolicy(4)(context) == (3, {})
    assert PendingPolicy(4)(SimpleNamespace(aggregated_metrics=None, target_num_replicas=2)) == (2, {})


def test_only_the_sessions_of_a_lost_replica_move() -> None:
    names = ["a", "b", "c"]
    sessions = [session_id("m", number) for number in range(300)]
    before = {each: owner(each, names) for each in sessions}
    counts = [sum(name == each for name in before.values()) for each in names]
    assert min(counts) > 60
    after = {each: owner(each, ["c", "a"]) for each in sessions}
    assert all(after[each] == name for each, name in before.items() if name != "b")
    assert session_id("m", 1) != session_id("m", "1")
    assert session_id("m", ("t", 1)) != session_id("m", 1)


def test_a_model_that_clients_name_to_ray_stays_at_some_replicas() -> None:
    """The same ones for all proxies, whatever order they know the replicas in; others only where one has gone."""
    names = [f"r{index}" for index in range(6)]
    homes = {model: candidates("", model, names) for model in map(str, range(200))}
    assert all(candidates("", model, names[::-1]) == each for model, each in homes.items())
    assert {len(set(each)) for each in homes.values()} == {MODEL_HOMES}
    counts = [sum(name in each for each in homes.values()) for name in names]
    assert min(counts) > 40
    rest = [name for name in names if name != "r3"]
    assert all(candidates("", model, rest) == each for model, each in homes.items() if "r3" not in each)
    assert candidates("", "m", ["only"]) == ["only"]


def test_a_session_comes_before_a_model_and_others_go_anywhere() -> None:
    names = ["a", "b", "c"]
    assert candidates(session_id("m", 1), "m", names) == [owner(session_id("m", 1), names)]
    pairs = {tuple(sorted(candidates("", "", names))) for _ in range(200)}
    assert pairs == {("a", "b"), ("a", "c"), ("b", "c")}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--min-replicas", "2"], "option '--min-replicas' requires '--max-replicas'"),
        (["--replicas", "0"], "option '--replicas': expected 1 or more, got: 0"),
        (["--replicas", "2", "--max-replicas", "3"], "'--replicas' and '--max-replicas' cannot go together"),
        (["--min-replicas", "4", "--max-replicas", "3"], "expected 1 to 3, which is --max-replicas, got: 4"),
        (["--nosuch", "3"], "'--nosuch'"),
    ],
)
def test_wrong_command_lines(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ray", "deploy", "--model-repository", REPOSITORY, *words]) == 2
    assert text in capsys.readouterr().err


def test_a_failed_deployment_has_the_reason_of_its_replicas() -> None:
    error = "modserve.core.errors.ModserveError: "
    deployments = {
        "modserve": SimpleNamespace(message=f"Traceback:\n  x\n{error}models failed to load: a: no file\n"),
        "b": SimpleNamespace(message=""),
    }
    status = SimpleNamespace(applications={"mine": SimpleNamespace(deployments=deployments)})
    assert reason(status, "mine") == "models failed to load: a: no file"
    assert reason(status, "other") == ""
