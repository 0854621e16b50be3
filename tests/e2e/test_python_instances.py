"""A changed `instance_group` of a Python model changes just that: which instances come and go, and what goes on."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from python_models import EVERY_MODE, TRITON, infer, serving_python, tensors, write_python
from server_process import eventually
from tritonclient.utils import InferenceServerException
from wire import HOST, SECONDS, http

MODEL = """
import os, time

def note(what, name):
    with open("LOG", "a") as log:
        log.write(f"{what} {name}\\n")

class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_instance_name"]
        if os.path.exists("LOG.broken"):
            raise pb_utils.TritonModelException("no room for one more")
        note("initialize", self.name)
        self.sum = 0

    def execute(self, requests):
        responses = []
        for request in requests:
            value = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().flat[0])
            if value == 99:
                note("execute", self.name)
                while not os.path.exists("LOG.go"):
                    time.sleep(0.005)
            self.sum += value
            made = [pb_utils.Tensor("OUT", np.array([json.dumps([self.name, self.sum])], np.object_))]
            responses.append(pb_utils.InferenceResponse(made))
        return responses

    def finalize(self):
        note("finalize", self.name)
"""
TENSORS = tensors("input", IN="INT32 1") + "\n" + tensors("output", OUT="BYTES 1") + "\n"
SEQUENCES = "sequence_batching { max_sequence_idle_microseconds: 3600000000 }\n"


def group(count: int, more: str = "") -> str:
    return f"instance_group [ {{ count: {count} kind: KIND_CPU {more} }} ]\n"


class Served:
    """A server with models that note in a file what becomes of their instances."""

    def __init__(self, process: Any, root: Path, repository: Path) -> None:
        self.process = process
        self.root = root
        self.repository = repository
        self.name = ""
        self._text = ""
        self.client = tritonclient.http.InferenceServerClient(f"{HOST}:{process.http_port}", network_timeout=SECONDS)

    def serve(self, name: str, config: str, groups: str, mode: str = "process") -> None:
        self.name = f"{name}_{mode}"
        code = MODEL.replace("LOG", str(self.log))
        write_python(self.repository, name, code, TENSORS + config + groups, modes=[mode])
        self._text = self._config.read_text().replace(groups, "GROUPS")
        self.client.load_model(self.name)

    @property
    def log(self) -> Path:
        return self.root / f"{self.name}.log"

    @property
    def _config(self) -> Path:
        return self.repository / self.name / "config.pbtxt"

    def change(self, groups: str) -> None:
        before = self._config.stat().st_mtime_ns
        self._config.write_text(self._text.replace("GROUPS", groups))
        os.utime(self._config, ns=(before + 10**9,) * 2)
        self.client.load_model(self.name)

    def counts(self, what: str) -> int:
        return sum(line.startswith(what + " ") for line in self.log.read_text().splitlines())

    def ask(self, value: int = 1, **more: Any) -> Any:
        return json.loads(infer(self.process, "grpc", self.name, {"IN": np.array([value], np.int32)}, **more)["OUT"][0])

    def asking(self, count: int) -> tuple[list[Any], Callable[[], None]]:
        """Requests in threads that do not end before the result is called."""
        answers: list[Any] = []
        threads = [threading.Thread(target=lambda: answers.append(self.ask(99))) for _ in range(count)]
        for thread in threads:
            thread.start()

        def finish() -> None:
            Path(f"{self.log}.go").touch()
            for thread in threads:
                thread.join(SECONDS)

        return answers, finish

    def close(self) -> None:
        self.client.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Path]]:
    repository = tmp_path_factory.mktemp("python_instances")
    options = ["--model-control-mode=explicit", "--rate-limit=execution_count"]
    with serving_python(repository, options, errors=["ERROR", "Traceback"]) as process:
        yield process, repository


@pytest.fixture
def served(running: tuple[Any, Path], tmp_path: Path) -> Iterator[Served]:
    with closing(Served(running[0], tmp_path, running[1])) as made:
        yield made
        made.client.unload_model(made.name)
        eventually(lambda: made.counts("finalize") == made.counts("initialize"))


@pytest.mark.parametrize("mode", EVERY_MODE if not TRITON else ("process",))
def test_only_what_is_missing_is_initialized(served: Served, mode: str) -> None:
    served.serve("counts", "", group(1), mode)
    made = [served.counts("initialize")]
    for count in (2, 4, 3, 1):
        served.change(group(count))
        made.append(served.counts("initialize"))
    assert made == [1, 2, 4, 4, 4]
    eventually(lambda: served.counts("finalize") == 3)
    assert served.ask()[1] == 1
    report = served.client.get_inference_statistics(served.name)["model_stats"][0]
    assert report["inference_count"] == 1


def test_groups_are_renamed_added_and_removed(served: Served) -> None:
    served.serve("groups", "", group(2, 'name: "a"'))
    served.change(group(2, 'name: "b"'))
    assert served.counts("initialize") == 2
    served.change(group(2, 'name: "b"') + group(1, 'name: "c"'))
    assert served.counts("initialize") == 3
    served.change(group(1, 'name: "c"'))
    eventually(lambda: served.counts("finalize") == 2)
    assert served.counts("initialize") == 3
    config = served.client.get_model_config(served.name)
    assert [each["name"] for each in config["instance_group"]] == ["c"]


@pytest.mark.skipif(bool(TRITON), reason="Triton makes instances anew whose resources change")
def test_resources_and_priorities_are_no_reason_to_initialize(served: Served) -> None:
    def limited(count: int, priority: int) -> str:
        return f'rate_limiter {{ resources [ {{ name: "R" count: {count} }} ] priority: {priority} }}'

    served.serve("resources", "", group(2))
    for more in (limited(1, 1), limited(2, 3), ""):
        served.change(group(2, more))
        served.ask()
    assert served.counts("initialize") == 2


def test_requests_in_flight_and_in_the_queue_are_answered(served: Served) -> None:
    served.serve("busy", "", group(2))
    answers, finish = served.asking(5)
    eventually(lambda: served.counts("execute") == 2)
    served.change(group(3))
    eventually(lambda: served.counts("execute") == 3)
    served.change(group(1))
    finish()
    assert sorted(sum_ % 99 for _, sum_ in answers) == [0] * 5
    eventually(lambda: served.counts("finalize") == 2)
    assert served.counts("initialize") == 3
    assert served.client.get_inference_statistics(served.name)["model_stats"][0]["inference_count"] == 5


def test_an_initialize_that_fails_changes_nothing(served: Served) -> None:
    served.serve("failing", "", group(1))
    broken = Path(f"{served.log}.broken")
    broken.touch()
    with pytest.raises(InferenceServerException, match="no room for one more"):
        served.change(group(3))
    assert served.ask()[1] == 1
    broken.unlink()
    served.change(group(2))
    assert (served.counts("initialize"), served.counts("finalize")) == (2, 0)


def test_a_configuration_in_the_call(served: Served) -> None:
    served.serve("override", "", group(1))
    config = served.client.get_model_config(served.name)
    for count in (3, 2):
        config["instance_group"] = [{"count": count, "kind": "KIND_CPU"}]
        served.client.load_model(served.name, config=json.dumps(config))
    eventually(lambda: served.counts("finalize") == 1)
    assert served.counts("initialize") == 3


def test_a_sequence_ends_on_an_instance_that_was_removed(served: Served) -> None:
    served.serve("sums", SEQUENCES, group(2))
    asked = [served.ask(1, sequence_id=id, sequence_start=True) for id in (1, 2)]
    assert len({name for name, _ in asked}) == 2
    served.change(group(1))
    for id, (name, _) in enumerate(asked, 1):
        assert served.ask(1, sequence_id=id) == [name, 2]
        assert served.ask(1, sequence_id=id, sequence_end=True) == [name, 3]
    eventually(lambda: served.counts("finalize") == 1)
    assert served.counts("initialize") == 2


@pytest.mark.skipif(bool(TRITON), reason="metrics of Triton are not compared")
def test_the_metrics_count_the_instances_that_there_are(served: Served) -> None:
    served.serve("counted", "", group(2))

    def running() -> list[float]:
        text = http(served.process.metrics_port, "GET", "/metrics").body.decode()
        lines = [line for line in text.splitlines() if line.startswith("modserve_instances{") and served.name in line]
        return [float(line.split()[-1]) for line in lines if 'state="running"' in line]

    assert running() == [2]
    served.change(group(1))
    assert running() == [1]
    assert served.counts("initialize") == 2
