"""modserve on a cluster of Ray with three nodes: clients' calls, changes, sequences, faults, and scaling."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from prometheus_client.parser import text_string_to_metric_families
from ray_cluster import APP, RayCluster, load, repository, wait

import modserve

ONES = np.ones((1, 16), np.int32)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    made = RayCluster(repository(tmp_path_factory.mktemp("models")))
    try:
        made.deploy()
        made.steady(3)
        yield made
    finally:
        made.stop()


def count(cluster: RayCluster, model: str = "simple") -> int:
    stats = httpx.get(f"{cluster.url}/v2/models/{model}/stats", timeout=120).json()["model_stats"][0]
    return int(stats["inference_count"])


def ready(cluster: RayCluster, model: str, tries: int = 12) -> set[int]:
    """The statuses of many probes, which go to different replicas."""
    url = f"{cluster.url}/v2/models/{model}/ready"
    return {httpx.get(url, timeout=120).status_code for _ in range(tries)}


def test_clients_over_rest(cluster: RayCluster) -> None:
    url = cluster.url.removeprefix("http://")
    with tritonclient.http.InferenceServerClient(url, network_timeout=120) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.get_model_metadata("simple")["name"] == "simple"
        inputs = [tritonclient.http.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
        for tensor in inputs:
            tensor.set_data_from_numpy(ONES)
        result = client.infer("simple", inputs, request_id="mine")
        assert result.as_numpy("OUTPUT0").tolist() == [[2] * 16]
        assert result.get_response()["id"] == "mine"
        with pytest.raises(tritonclient.http.InferenceServerException, match="Request for unknown model: 'nosuch'"):
            client.infer("nosuch", inputs)


def test_v1_and_streams_over_rest(cluster: RayCluster) -> None:
    instance = {"INPUT0": [3] * 16, "INPUT1": [1] * 16}
    v1 = httpx.post(f"{cluster.url}/v1/models/simple:predict", json={"instances": [instance]}, timeout=120)
    assert v1.json() == {"predictions": [{"OUTPUT0": [4] * 16, "OUTPUT1": [2] * 16}]}
    fields = {"IN": [7, 8, 9], "DELAY": [0, 0, 0], "WAIT": 0}
    url = f"{cluster.url}/v2/models/repeat/generate_stream"
    with httpx.stream("POST", url, json=fields, timeout=120) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line]
    assert [line["OUT"] for line in lines] == [7, 8, 9]


def test_clients_over_grpc(cluster: RayCluster) -> None:
    with tritonclient.grpc.InferenceServerClient(cluster.grpc_url.removeprefix("grpc://")) as client:
        assert client.is_server_live()
        assert client.is_model_ready("simple")
        inputs = [tritonclient.grpc.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
        for tensor in inputs:
            tensor.set_data_from_numpy(ONES)
        assert client.infer("simple", inputs).as_numpy("OUTPUT0").tolist() == [[2] * 16]
        with pytest.raises(
            tritonclient.grpc.InferenceServerException, match="Request for unknown model: 'nosuch'"
        ) as raised:
            client.infer("nosuch", inputs)
        assert raised.value.status() == "StatusCode.NOT_FOUND"


def test_a_bidirectional_stream(cluster: RayCluster) -> None:
    """Responses of a decoupled model, of others, and errors of single requests, while the client goes on sending."""
    import queue

    outcomes: queue.Queue[Any] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(cluster.grpc_url.removeprefix("grpc://")) as client:
        client.start_stream(lambda result, error: outcomes.put(error or result))
        inputs = []
        for name, values, kind in (("IN", [7, 8], "INT32"), ("DELAY", [0, 0], "UINT32"), ("WAIT", [0], "UINT32")):
            tensor = tritonclient.grpc.InferInput(name, [len(values)], kind)
            tensor.set_data_from_numpy(np.array(values, np.int32 if kind == "INT32" else np.uint32))
            inputs.append(tensor)
        for turn in range(3):
            client.async_stream_infer("repeat", inputs, request_id=str(turn))
            values = [int(outcomes.get(timeout=120).as_numpy("OUT").ravel()[0]) for _ in range(2)]
            assert values == [7, 8]
            client.async_stream_infer("nosuch", inputs)
            assert "unknown model" in str(outcomes.get(timeout=120))
        client.stop_stream()


def test_statistics_add_up(cluster: RayCluster) -> None:
    before = count(cluster)
    with modserve.connect(cluster.grpc_url, timeout=120) as client, ThreadPoolExecutor(4) as pool:
        call = lambda _: client.infer("simple", {"INPUT0": ONES, "INPUT1": ONES})  # noqa: E731
        list(pool.map(call, range(40)))
    assert {count(cluster) for _ in range(6)} == {before + 40}


def test_the_page_of_metrics_has_each_replica(cluster: RayCluster) -> None:
    before = page(cluster, "nv_inference_count")
    with modserve.connect(cluster.grpc_url, timeout=120) as client, ThreadPoolExecutor(4) as pool:
        call = lambda _: client.infer("simple", {"INPUT0": ONES, "INPUT1": ONES})  # noqa: E731
        list(pool.map(call, range(40)))
    after = page(cluster, "nv_inference_count")
    assert len(after) == 3
    assert sum(after.values()) == sum(before.values()) + 40 == count(cluster)


def page(cluster: RayCluster, name: str) -> dict[str, float]:
    """The values of a metric of `simple`, by replica."""
    text = httpx.get(f"{cluster.url}/metrics", timeout=120).raise_for_status().text
    (family,) = (each for each in text_string_to_metric_families(text) if each.name == name)
    return {each.labels["replica"]: each.value for each in family.samples if each.labels["model"] == "simple"}


def test_changes_are_made_in_all_replicas(cluster: RayCluster) -> None:
    control = f"{cluster.url}/v2/repository"
    assert ready(cluster, "digits") == {404}
    assert httpx.post(f"{control}/models/digits/load", timeout=180).status_code == 200
    assert ready(cluster, "digits") == {200}
    states = [httpx.post(f"{control}/index", timeout=120).json() for _ in range(6)]
    assert all(state == states[0] for state in states)
    refused = httpx.post(f"{control}/models/digits/load", json={"parameters": {"config": "{"}}, timeout=120)
    assert refused.status_code == 400
    assert ready(cluster, "digits") == {200}
    assert httpx.post(f"{control}/models/digits/unload", timeout=120).status_code == 200
    wait(lambda: ready(cluster, "digits") == {400}, "digits is unloaded")


def test_sequences_stay_where_they_began(cluster: RayCluster) -> None:
    """Each request comes to any replica, over either protocol; the sums are right, and several replicas have some."""
    processes: dict[int, set[int]] = {}

    def one(number: int) -> None:
        url = cluster.url if number % 2 else cluster.grpc_url
        total = 0
        with modserve.connect(url, timeout=120) as client:
            for step in range(1, 6):
                total += step * number
                flags = {"sequence_id": number, "sequence_start": step == 1, "sequence_end": step == 5}
                result = client.infer("accumulate", {"VALUE": [[step * number]]}, parameters=flags)
                assert result["SUM"].tolist() == [[total]]
                processes.setdefault(number, set()).add(int(result["PROCESS"][0, 0]))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(1, 25)))
    assert all(len(each) == 1 for each in processes.values())
    assert len(set.union(*processes.values())) > 1


def test_requests_of_a_sequence_on_a_stream_stay_in_order(cluster: RayCluster) -> None:
    import queue

    outcomes: queue.Queue[Any] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(cluster.grpc_url.removeprefix("grpc://")) as client:
        client.start_stream(lambda result, error: outcomes.put(error or result))
        for step in range(20):
            tensor = tritonclient.grpc.InferInput("VALUE", [1, 1], "INT32")
            tensor.set_data_from_numpy(np.array([[step]], np.int32))
            start, end = step == 0, step == 19
            client.async_stream_infer("accumulate", [tensor], sequence_id=9001, sequence_start=start, sequence_end=end)
        sums = [int(outcomes.get(timeout=120).as_numpy("SUM")[0, 0]) for _ in range(20)]
        assert sums == [step * (step + 1) // 2 for step in range(20)]
        client.stop_stream()


def test_a_model_that_clients_name_to_ray_stays_at_two_replicas(cluster: RayCluster) -> None:
    """Over either protocol, so that the others need not have it in memory; without the name it goes anywhere."""

    def processes(url: str, **headers: str) -> set[int]:
        with modserve.connect(url, timeout=120, headers=headers) as client:
            return {int(client.infer("where", {"VALUE": [[1]]})["PROCESS"][0, 0]) for _ in range(20)}

    homes = processes(cluster.url, serve_multiplexed_model_id="where")
    homes |= processes(cluster.grpc_url, multiplexed_model_id="where")
    assert 1 <= len(homes) <= 2

    def anywhere() -> set[int]:
        """Of one call after the other, Ray sends each to a replica that is near its proxy."""
        with ThreadPoolExecutor(8) as clients:
            return set().union(*clients.map(lambda _: processes(cluster.url), range(8)))

    assert wait(lambda: homes < anywhere(), "a call without the name goes to another replica")


def test_a_sequence_that_has_not_begun_is_refused(cluster: RayCluster) -> None:
    with modserve.connect(cluster.url, timeout=120) as client, pytest.raises(modserve.ClientError, match="START"):
        client.infer("accumulate", {"VALUE": [[1]]}, parameters={"sequence_id": 777})


def test_a_killed_replica_is_replaced_with_what_clients_have_changed(cluster: RayCluster) -> None:
    assert httpx.post(f"{cluster.url}/v2/repository/models/digits/load", timeout=180).status_code == 200
    with load(cluster.url, "`kill -9` of a replica") as clients:
        victim = cluster.processes()[0]
        os.kill(victim, signal.SIGKILL)
        wait(lambda: victim not in cluster.processes() and len(cluster.processes()) == 3, "another replica")
        cluster.steady(3)
        clients.until_answered(50)
    assert clients.lost <= 2 * 4  # what its clients had in flight at the moment, and when they were sent to it again
    assert ready(cluster, "digits", 20) == {200}
    assert httpx.post(f"{cluster.url}/v2/repository/models/digits/unload", timeout=120).status_code == 200


def test_a_sequence_whose_replica_is_lost_is_refused(cluster: RayCluster) -> None:
    """Never a wrong sum: the client is told, and begins again."""
    start = {"sequence_id": 4711, "sequence_start": True}
    with modserve.connect(cluster.grpc_url, timeout=120) as client:
        victim = int(client.infer("accumulate", {"VALUE": [[5]]}, parameters=start)["PROCESS"][0, 0])
        assert victim in cluster.processes()
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(modserve.ClientError, match=r"start the sequence again|START"):
            client.infer("accumulate", {"VALUE": [[6]]}, parameters={"sequence_id": 4711})
        cluster.steady(3)
        again = client.infer("accumulate", {"VALUE": [[7]]}, parameters=start)
        assert again["SUM"].tolist() == [[7]]


def test_a_killed_ledger_learns_from_the_replicas(cluster: RayCluster) -> None:
    """What clients have changed before still holds, also for replicas that start later."""
    control = f"{cluster.url}/v2/repository/models"
    assert httpx.post(f"{control}/digits/load", timeout=180).status_code == 200
    (ledger,) = cluster.processes("LedgerActor")
    os.kill(ledger, signal.SIGKILL)
    wait(lambda: cluster.processes("LedgerActor") not in ([], [ledger]), "another ledger")
    wait(lambda: httpx.post(f"{control}/repeat/unload", timeout=120).status_code == 200, "a change")
    os.kill(cluster.processes()[0], signal.SIGKILL)
    cluster.steady(3)
    wait(lambda: ready(cluster, "digits", 20) == {200}, "digits in all replicas")
    wait(lambda: ready(cluster, "repeat", 20) == {400}, "repeat in none")
    assert httpx.post(f"{control}/digits/unload", timeout=120).status_code == 200
    assert httpx.post(f"{control}/repeat/load", timeout=120).status_code == 200


def test_a_killed_raylet_and_a_new_node(cluster: RayCluster) -> None:
    """A node vanishes with its replica; the others serve, and a new node gets the third replica again."""
    with load(cluster.url, "`kill -9` of a node's raylet, another node later") as clients:
        node = cluster.others.pop()
        os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)
        wait(lambda: cluster.running() == 2, "two replicas")
        clients.until_answered(50)
        cluster.cluster.remove_node(node, allow_graceful=False)
        cluster.others.append(cluster.add_node())
        cluster.steady(3)
        clients.until_answered(50)
    assert clients.lost <= 2 * 4


def test_a_node_is_removed_under_load(cluster: RayCluster) -> None:
    with load(cluster.url, "a node was removed, another one added") as clients:
        cluster.cluster.remove_node(cluster.others.pop(), allow_graceful=True)
        wait(lambda: cluster.running() == 2, "two replicas")
        clients.until_answered(50)
        cluster.others.append(cluster.add_node())
        cluster.steady(3)
    assert clients.lost <= 2 * 4


def test_an_update_of_the_repository_loses_nothing(cluster: RayCluster) -> None:
    """A new version of a model comes with new replicas, one after the other."""
    place = cluster.models / "simple"
    source = next(each for each in place.iterdir() if each.name == "1")
    target = place / "2"
    if not target.exists():
        target.mkdir()
        for file in source.iterdir():
            (target / file.name).write_bytes(file.read_bytes())
    before = set(cluster.processes())
    with load(cluster.url, "a new version of the model was deployed") as clients:
        cluster.deploy("second")
        cluster.steady(3)
        clients.until_answered(50)
    assert clients.lost == 0
    assert not before & set(cluster.processes())
    with modserve.connect(cluster.url, timeout=120) as client:
        assert client.infer("simple", {"INPUT0": ONES, "INPUT1": ONES}).version == 2


def add_to_sequences(cluster: RayCluster, step: int, **flags: bool) -> dict[int, int]:
    """One step of 24 sequences, whose sums are checked; the processes that they are in."""
    processes = {}
    with modserve.connect(cluster.grpc_url, timeout=120) as client:
        for number in range(5001, 5025):
            parameters = {"sequence_id": number, **flags}
            result = client.infer("accumulate", {"VALUE": [[number]]}, parameters=parameters)
            assert result["SUM"].tolist() == [[step * number]]
            processes[number] = int(result["PROCESS"][0, 0])
    return processes


def test_replicas_follow_the_pending_requests(cluster: RayCluster) -> None:
    """More while many requests are pending, and sequences stay; fewer when there are few, of which none is lost."""
    scaling = {
        "min_replicas": 1,
        "max_replicas": 3,
        "upscale_delay_s": 1,
        "downscale_delay_s": 2,
        "metrics_interval_s": 0.5,
        "look_back_period_s": 2,
    }
    cluster.deploy("third", {"num_replicas": None, "autoscaling_config": scaling})
    cluster.steady(1)
    places = add_to_sequences(cluster, 1, sequence_start=True)
    grown = threading.Event()
    with modserve.connect(cluster.grpc_url, timeout=600) as client, ThreadPoolExecutor(16) as pool:

        def work() -> bool:
            """Requests of 1.5 s, one after the other, as long as there are too few replicas."""
            right = True
            while not grown.is_set():
                right &= _slow(client, {"IN": [1], "DELAY": [1500], "WAIT": 0}) == [[1]]
            return right

        results = [pool.submit(work) for _ in range(16)]
        try:
            wait(lambda: cluster.running() == 3, "three replicas")
            assert add_to_sequences(cluster, 2) == places  # also those that would begin in a new replica now
            assert add_to_sequences(cluster, 3, sequence_end=True) == places
        finally:
            grown.set()
        assert all(each.result() for each in results)
    with load(cluster.url, "two of three replicas were stopped, since little was pending", clients=1) as clients:
        cluster.steady(1)
        clients.until_answered(50)
    assert clients.lost == 0


def _slow(client: modserve.Client, fields: dict[str, Any]) -> list[Any]:
    return [np.ravel(result["OUT"]).tolist() for result in client.stream("repeat", fields)]


def test_deploy_by_the_command(cluster: RayCluster) -> None:
    command = [sys.executable, "-m", "modserve", "ray", "deploy", "--address", cluster.cluster.address]
    command += ["--name", APP, "--replicas", "2", "--model-repository", str(cluster.models), "--load-model", "simple"]
    command += ["--model-control-mode", "explicit"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{APP}: deployed, revision 2")
    cluster.steady(2)
    assert ready(cluster, "simple") == {200}
    broken = subprocess.run([*command, "--max-replicas", "2"], capture_output=True, text=True, timeout=600, check=False)
    assert broken.returncode == 2
    assert "'--replicas' and '--max-replicas' cannot go together" in broken.stderr


def test_ray_reads_the_manifest() -> None:
    """What KubeRay hands to Ray Serve fits the schema of this version."""
    import yaml
    from ray.serve.schema import ServeDeploySchema

    manifest = yaml.safe_load((Path(__file__).parents[2] / "deploy" / "ray" / "rayservice.yaml").read_text("utf-8"))
    config = ServeDeploySchema.model_validate(yaml.safe_load(manifest["spec"]["serveConfigV2"]))
    assert [each.import_path for each in config.applications] == ["modserve.ray:build"]
