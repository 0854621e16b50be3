"""What was rolled back stays so: after a restart, on the next server, and until somebody decides anew."""

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from python_models import tensors
from server_here import serving_here
from server_process import Server, eventually, serving
from stores import relay_to
from wire import HOST, Answer, http

from buckets import KEYS, Bucket, moto
from modserve.commands.rollout.steps import UNDER_WAY

MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.version = int(args["model_version"])

    def execute(self, requests):
        if self.version == 2:
            raise ValueError("no")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones(1, np.float32))]) for _ in requests]
"""
RULE = {"version": "canary", "error_share": 0.2, "least_requests": 5}
ROUTING = {"labels": {"stable": 1, "canary": 2}, "split": {"stable": 1, "canary": 1}, "rollback": RULE}
FAILURES = [r"model 'm'", "Traceback"]
REASON = "5 of the last 5 requests failed (100.0%), and at most 20.0% may"


def write(repository: Path, *extra: str) -> Path:
    for version in ("1", "2"):
        (repository / "m" / version).mkdir(parents=True)
        (repository / "m" / version / "model.py").write_text(MODEL)
    config = ['backend: "python"', tensors("input", IN="FP32 1"), tensors("output", OUT="FP32 1"), *extra]
    config.append('parameters { key: "EXECUTION_MODE" value { string_value: "thread" } }')
    (repository / "m" / "config.pbtxt").write_text("\n".join(config))
    return repository / "m" / "rolled_back.json"


def configured() -> str:
    return f"parameters {{ key: \"routing\" value {{ string_value: '{json.dumps(ROUTING)}' }} }}"


def routing(server: Server, method: str = "GET", document: object = None) -> Answer:
    body = b"" if document is None else json.dumps(document).encode()
    return http(server.http_port, method, "/v2/models/m/routing", body)


def outcomes(server: Server, times: int = 20) -> Counter[str]:
    """The versions that responded to requests that name none, and the failures."""
    document = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [0]}]}
    answers = [
        http(server.http_port, "POST", "/v2/models/m/infer", json.dumps(document).encode()) for _ in range(times)
    ]
    return Counter(answer.json["model_version"] if answer.status == 200 else "failed" for answer in answers)


def command(*words: str, server: Server, second: Server | None = None) -> Any:
    urls = ",".join(f"http://{HOST}:{each.http_port}" for each in (server, second) if each is not None)
    done = subprocess.run(
        [sys.executable, "-m", "modserve", *words, "--url", urls], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_a_canary_of_the_configuration_stays_rolled_back(tmp_path: Path) -> None:
    file = write(tmp_path, "version_policy { all { } }", configured())
    with serving_here(tmp_path, errors=FAILURES) as server:
        assert outcomes(server, 40)["failed"] == 5
        eventually(file.exists)
        assert json.loads(file.read_text())["2"]["reason"] == REASON
    with serving_here(tmp_path, errors=FAILURES) as server:
        assert outcomes(server) == {"1": 20}
        report = routing(server).json
        assert report["routes"][1]["rolled_back"]["reason"] == report["rolled_back"]["2"]["reason"] == REASON
        code, text = command("models", "m", server=server)
        assert code == 0
        assert f"rolled back, and takes no requests that name no version: {REASON}" in text
        assert routing(server, "DELETE").status == 200
        assert not file.exists()
        assert "rolled_back" not in routing(server).json
        assert outcomes(server, 2)["failed"] == 1


def test_a_canary_of_a_client_does_not_become_the_latest_version(tmp_path: Path) -> None:
    file = write(tmp_path, "version_policy { all { } }")
    with serving_here(tmp_path, errors=FAILURES) as server:
        assert routing(server, "POST", ROUTING).status == 200
        assert outcomes(server, 40)["failed"] == 5
        eventually(file.exists)
    with serving_here(tmp_path, errors=FAILURES) as server:
        assert outcomes(server) == {"1": 20}
        assert routing(server).json["rolled_back"]["2"]["reason"] == REASON
        assert routing(server, "POST", {"split": {"2": 1}}).status == 200
        assert not file.exists()
        assert outcomes(server, 2) == {"failed": 2}
        answer = routing(server, "POST", {"rolled_back": {"9": "it is bad"}})
        text = "model 'm' has no version 9 in a repository, which could be rolled back"
        assert (answer.status, answer.json["error"]) == (400, text)


def test_workers_write_once_and_all_keep_to_it(tmp_path: Path) -> None:
    file = write(tmp_path, "version_policy { all { } }")
    with serving(tmp_path, options=["--workers=2"], errors=FAILURES) as server:
        answer = routing(server, "POST", {"rolled_back": {"2": "it is bad"}})
        assert (answer.status, answer.json["rolled_back"]["2"]["reason"]) == (200, "it is bad")
        assert json.loads(file.read_text())["2"]["reason"] == "it is bad"
        eventually(lambda: outcomes(server) == {"1": 20})
        assert {answer.status for answer in (routing(server) for _ in range(12))} == {200}
        assert routing(server, "POST", {"rolled_back": {"2": None}}).status == 200
        assert not file.exists()
        eventually(lambda: outcomes(server) == {"failed": 20})


def test_a_rollout_that_went_back_survives_a_restart(tmp_path: Path) -> None:
    file = write(tmp_path)
    options = ["--model-control-mode=explicit", "--load-model=*"]
    config = tmp_path / "m" / "config.pbtxt"
    text = config.read_text()
    config.write_text(text + "\nversion_policy { specific { versions: 1 } }")
    with serving_here(tmp_path, options=options) as first, serving_here(tmp_path, options=options) as second:
        config.write_text(text)
        words = ["rollout", "m:2", "--yes", "--watch=0.2"]
        code, out = command(*words, server=first, second=second)
        assert (code, "all servers are as before" in out, "after a restart" in out) == (1, True, False), out
        assert "had 0 requests" in json.loads(file.read_text())["2"]["reason"]
        assert outcomes(second) == {"1": 20}
    failing: Any = {"options": options, "errors": FAILURES}
    with serving_here(tmp_path, **failing) as first, serving_here(tmp_path, **failing) as second:
        assert outcomes(first) == outcomes(second) == {"1": 20}
        assert "version 2 was rolled back" in command("models", "m", server=first)[1]
        first.wait_for("model 'm': version 2 was rolled back, and is not served")
        code, out = command(*words, "--requests=0", server=first, second=second)
        assert (code, file.exists()) == (0, False), out
        assert outcomes(first) == outcomes(second) == {"failed": 20}


def test_a_server_that_starts_during_a_rollout_goes_on_with_the_version_before(tmp_path: Path) -> None:
    file = write(tmp_path)
    options = ["--model-control-mode=explicit", "--load-model=*"]
    config = tmp_path / "m" / "config.pbtxt"
    text = config.read_text()
    config.write_text(text + "\nversion_policy { specific { versions: 1 } }")
    with serving(tmp_path, options=options) as first, serving(tmp_path, options=options) as second:
        config.write_text(text)
        urls = ",".join(f"http://{HOST}:{each.http_port}" for each in (first, second))
        words = ["rollout", "m:2", "--yes", "--watch=600", "--url", urls]
        with subprocess.Popen(
            [sys.executable, "-m", "modserve", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as rollout:
            assert rollout.stdout is not None
            assert any("watching" in line for line in rollout.stdout)
            assert json.loads(file.read_text())["2"]["reason"] == UNDER_WAY
            with serving(tmp_path, options=options) as third:
                assert outcomes(third) == {"1": 20}
                assert f"version 2 was rolled back: {UNDER_WAY}" in command("models", "m", server=third)[1]
            rollout.send_signal(signal.SIGINT)
            assert "all servers are as before" in rollout.stdout.read()
        assert json.loads(file.read_text())["2"]["reason"] == "interrupted"


@pytest.mark.parametrize("content", ['{"2": {"reason": 3}}', "[", '{"x": {}}'])
def test_a_bad_file_is_ignored_and_named(tmp_path: Path, content: str) -> None:
    file = write(tmp_path, "version_policy { all { } }")
    file.write_text(content)
    with serving_here(tmp_path, errors=FAILURES) as server:
        server.wait_for(rf"WARNING .*'{file}' is ignored, and no version counts as rolled back: ")
        assert outcomes(server, 2) == {"failed": 2}


def test_where_nothing_can_be_written_the_log_and_the_command_say_what_to_do(tmp_path: Path) -> None:
    file = write(tmp_path, "version_policy { specific { versions: 1 } }")
    file.mkdir()
    failing: Any = {
        "options": ["--model-control-mode=explicit", "--load-model=*"],
        "errors": ["cannot be written"],
    }
    with serving_here(tmp_path, **failing) as first, serving_here(tmp_path, **failing) as second:
        code, out = command("rollout", "m:2", "--yes", "--watch=0.2", server=first, second=second)
        assert code == 1
        advice = f"'{file}' cannot be written: Is a directory: remove '{file.parent / '2'}', or a restart of this or"
        assert out.count(f"after a restart, it may not do without version 2: {advice}") == 2, out
        first.wait_for(advice)


def test_a_bucket_has_it_for_all_servers(tmp_path: Path) -> None:
    """One that takes nothing has not: the log says so, and the cache keeps it for the servers that share it."""
    write(tmp_path / "models", "version_policy { all { } }", configured())

    def place(address: str, cache: str, *errors: str) -> Any:
        options = [f"--model-repository=s3://{address}/canary/models", f"--repository-cache-dir={tmp_path / cache}"]
        return serving(options=options, environment=KEYS, errors=errors)

    with moto() as url, relay_to(url) as only_reads:
        bucket = Bucket(url, "canary")
        bucket.upload(tmp_path / "models", "models")
        kept = f"or a server without the cache '{tmp_path / 'one'}' takes version 2 for the latest again"
        with place(only_reads.address, "one", *FAILURES, "rolled_back.json' cannot be written") as server:
            assert outcomes(server, 40)["failed"] == 5
            server.wait_for(kept)
            assert routing(server).json["rolled_back"]["2"]["unsaved"].endswith(kept)
        with place(only_reads.address, "one") as server:
            assert outcomes(server) == {"1": 20}
        with place(bucket.address, "two", *FAILURES) as server:
            assert outcomes(server, 40)["failed"] == 5
            eventually(
                lambda: bucket.client.list_objects_v2(Bucket="canary", Prefix="models/m/rolled_back")["KeyCount"]
            )
            assert "unsaved" not in routing(server).json["rolled_back"]["2"]
        with place(bucket.address, "three") as server:
            assert outcomes(server) == {"1": 20}
            assert routing(server).json["rolled_back"]["2"]["reason"] == REASON
            assert routing(server, "DELETE").status == 200
        with place(bucket.address, "four", *FAILURES) as server:
            assert outcomes(server, 2)["failed"] == 1
