"""The life of models written in Python: what configures them, how they begin and end, and what they say meanwhile."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http
from python_models import MODES, TRITON, at_once, infer, serving_python, tensors, write_python
from server_process import eventually, serving
from wire import HOST, http

NOTING = """
class TritonPythonModel:
    def __init__(self):
        self.made = True

    def initialize(self, args):
        self.args = args
        self.seen = {"made": self.made, "texts": all(type(value) is str for value in args.values())}
        note("initialize " + args["model_version"])

    def execute(self, requests):
        made = [pb_utils.Tensor("OUT", np.array([json.dumps(self.tell())], np.object_))]
        return [pb_utils.InferenceResponse(made) for _ in requests]

    def tell(self):
        config = json.loads(self.args["model_config"])
        return {**self.seen, **self.args, "model_config": config}

    def finalize(self):
        note("finalize " + self.args["model_version"])

def note(text):
    with open(PATH, "a") as file:
        file.write(text + "\\n")
"""

PLAIN = """
class TritonPythonModel:
    def execute(self, requests):
        made = [pb_utils.Tensor("OUT", np.array([json.dumps(tell())], np.object_))]
        return [pb_utils.InferenceResponse(made) for _ in requests]
"""

MODULES = (
    """
import os
from pathlib import Path
import beside
import sub.deep
from sub import value
from beside import TEXT, get

def tell():
    from later import LATE
    data = (Path(__file__).parent / "data.txt").read_text()
    return [TEXT, get(), sub.deep.NAME, value, LATE, data, pb_utils.get_model_dir() == os.path.dirname(__file__)]
"""
    + PLAIN
)

BESIDE = {
    "beside.py": """
        import triton_python_backend_utils as pb_utils
        TEXT = "beside WHO"
        def get():
            return pb_utils.Tensor.__name__
    """,
    "sub/__init__.py": "from .deep import NAME as value",
    "sub/deep.py": 'from beside import TEXT\nNAME = "deep in " + TEXT',
    "later.py": 'LATE = "late WHO"',
    "data.txt": "data WHO",
}

COMPLETE = """
import os

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        before = config.as_dict()
        assert before["name"] == "NAME_MODE" and before["backend"] == "python", before
        assert [each["name"] for each in before["input"]] + [each["name"] for each in before["output"]] == []
        config.add_input({"name": "A", "data_type": "TYPE_FP32", "dims": [4]})
        config.add_input({"name": "B", "data_type": "TYPE_FP32", "dims": [-1], "optional": True})
        config.add_output({"name": "OUT", "data_type": "TYPE_STRING", "dims": [1]})
        config.set_max_batch_size(MAX)
        if MAX:
            config.set_dynamic_batching()
        if "many" in before["name"]:
            config.set_model_transaction_policy({"decoupled": True})
        return config

    def initialize(self, args):
        self.config = json.loads(args["model_config"])

    def execute(self, requests):
        config = self.config
        names = [one["name"] for one in config["input"]]
        out = np.array([json.dumps([config["max_batch_size"], names])], np.object_)
        made = [pb_utils.Tensor("OUT", out.reshape((1, 1) if MAX else 1))]
        return [pb_utils.InferenceResponse(made) for _ in requests]
"""

INSTANCES = """
import os
import threading
import time

class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_instance_name"]

    def execute(self, requests):
        time.sleep(0.3)
        text = json.dumps([self.name, os.getpid(), threading.get_ident()])
        made = [pb_utils.Tensor("OUT", np.array([text], np.object_))]
        return [pb_utils.InferenceResponse(made) for _ in requests]
"""

LOGGING = """
import sys

class TritonPythonModel:
    def initialize(self, args):
        pb_utils.Logger.log_info("initialize of MODE")

    def execute(self, requests):
        logger = pb_utils.Logger
        logger.log("plain of MODE")
        logger.log("specific of MODE", logger.WARNING)
        logger.log_info("info of MODE")
        logger.log_warn("warning of MODE")
        logger.log_error("error of MODE\\nwith a second line")
        logger.log_verbose("verbose of MODE")
        print("printed by MODE")
        print("complained by MODE", file=sys.stderr)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([b""], np.object_))]) for _ in requests]

    def finalize(self):
        pb_utils.Logger.log_info("finalize of MODE")
"""

METRICS = """
class TritonPythonModel:
    def initialize(self, args):
        kinds = pb_utils.MetricFamily
        self.requests = kinds(name="requests_MODE", description="How many", kind=kinds.COUNTER)
        self.counter = self.requests.Metric(labels={"model": args["model_name"], "version": "1"})
        self.other = self.requests.Metric(labels={"model": "other"})
        self.level = kinds(name="level_MODE", description="How high", kind=kinds.GAUGE)
        self.gauge = self.level.Metric()

    def execute(self, requests):
        self.counter.increment(len(requests))
        self.other.increment(0.5)
        self.gauge.set(7)
        self.gauge.increment(-2.5)
        texts = []
        for call in (lambda: self.counter.set(1), lambda: self.counter.increment(-1)):
            try:
                call()
            except pb_utils.TritonModelException as error:
                texts.append(str(error))
        told = json.dumps([self.counter.value(), self.gauge.value(), len(texts)])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([told], np.object_))]) for _ in requests]
"""

ENDING = """
class TritonPythonModel:
    def initialize(self, args):
        self.family = pb_utils.MetricFamily(name="ends_MODE", description="Ends", kind=pb_utils.MetricFamily.COUNTER)
        self.ends = self.family.Metric(labels={})

    def execute(self, requests):
        self.ends.increment(1)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([b""], np.object_))]) for _ in requests]

    def finalize(self):
        self.ends.increment(2)
        with open(PATH, "a") as file:
            file.write(f"{self.ends.value()} ")
            if "MODE" == "process":
                try:
                    pb_utils.is_model_ready("ending_MODE")
                except pb_utils.TritonModelException as error:
                    file.write("refused ")
"""

READY = """
import asyncio
import os
import time

class TritonPythonModel:
    ASYNC def is_ready(self):
        with open(PATH) as file:
            how = file.read()
        if how == "raise":
            raise ValueError("it is not")
        return {"yes": True, "no": False}.get(how, how)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([b""], np.object_))]) for _ in requests]
"""


ANY = tensors("input", IN="INT32 -1") + tensors("output", OUT="BYTES 1")


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notes")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, notes: Path) -> Path:
    repository = tmp_path_factory.mktemp("python_life")
    own = 'parameters { key: "mine" value { string_value: "my value" } }'
    write_python(repository, "noting", NOTING.replace("PATH", repr(f"{notes}/noting_MODE")), ANY + own)
    for who in ("one", "two"):
        files = {name: text.replace("WHO", who) for name, text in BESIDE.items()}
        write_python(repository, f"modules_{who}", MODULES, ANY, files=files)
    for name, size in (("complete", 0), ("complete_batch", 4), ("complete_many", 0)):
        write_python(repository, name, COMPLETE.replace("NAME", name).replace("MAX", str(size)), "")
    write_python(repository, "instances", INSTANCES, ANY + "instance_group { count: 3 kind: KIND_CPU }")
    write_python(repository, "logging", LOGGING, ANY)
    write_python(repository, "metrics", METRICS, ANY)
    write_python(repository, "ending", ENDING.replace("PATH", repr(f"{notes}/ending_MODE")), ANY)
    for name, kind in (("ready", ""), ("ready_async", "async ")):
        (notes / name).write_text("yes")
        write_python(repository, name, READY.replace("PATH", repr(f"{notes}/{name}")).replace("ASYNC ", kind), ANY)
    return repository


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Any]:
    options = ["--model-control-mode=explicit", "--load-model=*", "--log-verbose=1"]
    errors = ["error of (process|thread)", "Traceback", "must return a bool"]
    with serving_python(repository, options, errors, serving=serving) as running:
        yield running


def done(server: Any, model: str, **inputs: Any) -> Any:
    return json.loads(infer(server, "http", model, inputs or {"IN": [1]})["OUT"][0])


# Begin and end


def test_arguments_of_initialize(server: Any, mode: str, repository: Path) -> None:
    seen = done(server, f"noting_{mode}")
    config = seen.pop("model_config")
    assert seen == {
        "made": True,
        "texts": True,
        "model_name": f"noting_{mode}",
        "model_version": "1",
        "model_repository": str(repository / f"noting_{mode}"),
        "model_instance_kind": "CPU",
        "model_instance_name": f"noting_{mode}_0",
        "model_instance_device_id": "0",
    }
    assert (config["name"], config["backend"], config["max_batch_size"]) == (f"noting_{mode}", "python", 0)
    assert config["parameters"]["mine"] == {"string_value": "my value"}
    (tensor,) = config["input"]
    assert (tensor["name"], tensor["data_type"], [int(dim) for dim in tensor["dims"]]) == ("IN", "TYPE_INT32", [-1])


def test_a_model_is_loaded_again(server: Any, mode: str, repository: Path, notes: Path) -> None:
    model, file = f"noting_{mode}", notes / f"noting_{mode}"
    before = file.read_text()
    with tritonclient.http.InferenceServerClient(f"{HOST}:{server.http_port}") as client:
        client.unload_model(model)
        eventually(lambda: file.read_text() == f"{before}finalize 1\n")
        assert not client.is_model_ready(model)
        text = (repository / model / "1" / "model.py").read_text()
        (repository / model / "1" / "model.py").write_text(text.replace('{"made": self.made', '{"again": self.made'))
        client.load_model(model)
    assert "again" in done(server, model)
    assert file.read_text() == f"{before}finalize 1\ninitialize 1\n"


def test_metrics_work_in_finalize(server: Any, mode: str, notes: Path) -> None:
    """Calls of other models do not, as in Triton: what they need may be gone."""
    infer(server, "http", f"ending_{mode}", {"IN": [1]})
    with tritonclient.http.InferenceServerClient(f"{HOST}:{server.http_port}") as client:
        client.unload_model(f"ending_{mode}")
    text = "3.0 refused " if mode == "process" and not TRITON else "3.0 "
    eventually(lambda: (notes / f"ending_{mode}").exists() and (notes / f"ending_{mode}").read_text() == text)


# Modules beside model.py


@pytest.mark.parametrize("who", ["one", "two"])
def test_modules_beside_the_model(server: Any, mode: str, who: str) -> None:
    """Two models have modules of the same names, with other contents."""
    text = f"beside {who}"
    told = done(server, f"modules_{who}_{mode}")
    assert told == [text, "Tensor", f"deep in {text}", f"deep in {text}", f"late {who}", f"data {who}", True]


# The configuration is completed


@pytest.mark.parametrize(("name", "size"), [("complete", 0), ("complete_batch", 4), ("complete_many", 0)])
def test_completed_configurations(server: Any, mode: str, name: str, size: int) -> None:
    config = http(server.http_port, "GET", f"/v2/models/{name}_{mode}/config").json
    assert config["max_batch_size"] == size
    inputs = [(each["name"], each["data_type"], each["dims"], each["optional"]) for each in config["input"]]
    assert inputs == [("A", "TYPE_FP32", [4], False), ("B", "TYPE_FP32", [-1], True)]
    assert [(each["name"], each["data_type"], each["dims"]) for each in config["output"]] == [
        ("OUT", "TYPE_STRING", [1])
    ]
    assert config.get("model_transaction_policy", {}).get("decoupled", False) is (name == "complete_many")
    assert ("dynamic_batching" in config) is (size == 4)
    if name != "complete_many":
        sent = np.ones((1, 4) if size else 4, np.float32)
        response = infer(server, "http", f"{name}_{mode}", {"A": sent})
        assert json.loads(response.outputs["OUT"].ravel()[0]) == [size, ["A", "B"]]


# Instances


def test_instances_run_at_the_same_time(server: Any, mode: str) -> None:
    told = at_once(9, lambda _: done(server, f"instances_{mode}"))
    names, processes, threads = [{each[index] for each in told} for index in range(3)]
    assert {name.rsplit("_", 1)[0] for name in names} <= {f"instances_{mode}", f"instances_{mode}_0"}
    assert len(names) == 3
    assert (len(processes), len(threads) >= 3) == ((1, True) if mode == "thread" and not TRITON else (3, True))


# The log


@pytest.mark.skipif(bool(TRITON), reason="Triton's log looks otherwise")
def test_logger(server: Any, mode: str) -> None:
    infer(server, "http", f"logging_{mode}", {"IN": [1]})
    who = f"model 'logging_{mode}', instance 'logging_{mode}_0'"
    expected = [("INFO", "initialize"), ("INFO", "plain"), ("WARNING", "specific"), ("INFO", "info")]
    expected += [("WARNING", "warning"), ("ERROR", "error"), ("DEBUG", "verbose")]
    for level, word in expected:
        server.wait_for(rf" {level} +\S+: .*{re.escape(f'{word} of {mode}')}")
    assert f"{who}: plain of {mode}" in server.log
    server.wait_for(rf"printed by {mode}")
    server.wait_for(rf"complained by {mode}")


# Metrics


def test_metrics(server: Any, mode: str) -> None:
    assert done(server, f"metrics_{mode}") == [1.0, 4.5, 2]
    assert done(server, f"metrics_{mode}") == [2.0, 4.5, 2]
    page = http(server.metrics_port, "GET", "/metrics").body.decode()
    samples = dict(re.findall(rf"^(\w+_{mode}\S*) (\S+)$", page, re.MULTILINE))
    labels = f'model="metrics_{mode}",version="1"'
    assert float(samples[f"requests_{mode}{{{labels}}}"]) == 2
    assert float(samples[f'requests_{mode}{{model="other"}}']) == 1
    assert [float(value) for name, value in samples.items() if name.startswith(f"level_{mode}")] == [4.5]
    assert f"# HELP requests_{mode} How many" in page
    assert f"# TYPE requests_{mode} counter" in page
    assert f"# TYPE level_{mode} gauge" in page


# Readiness


@pytest.mark.skipif(bool(TRITON), reason="newer than Triton 2.51")
@pytest.mark.parametrize("name", ["ready", "ready_async"])
def test_what_a_model_says_of_its_readiness(server: Any, mode: str, notes: Path, name: str) -> None:
    path = f"/v2/models/{name}_{mode}/ready"
    for how, status in (("yes", 200), ("no", 400), ("raise", 400), ("a text", 400), ("yes", 200)):
        (notes / name).write_text(how)
        assert http(server.http_port, "GET", path).status == status, how
    (notes / name).write_text("no")
    assert http(server.http_port, "GET", "/v2/health/ready").status == 200
    (notes / name).write_text("yes")


def test_the_end(repository: Path, notes: Path) -> None:
    """What is loaded when the server ends is finalized."""
    files = [notes / f"noting_{mode}" for mode in MODES]
    before = [file.read_text() if file.exists() else "" for file in files]
    options = ["--model-control-mode=explicit", *(f"--load-model=noting_{mode}" for mode in MODES)]
    with serving_python(repository, options):
        pass
    assert [file.read_text() for file in files] == [f"{text}initialize 1\nfinalize 1\n" for text in before]
