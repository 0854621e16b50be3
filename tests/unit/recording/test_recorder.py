"""What is sampled, what a record has of it, and what is dropped."""

import gc
import json
import logging
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from modserve.core.configuration.record_settings import RecordSettings
from modserve.core.errors import invalid
from modserve.core.requests.inflight import Inflight
from modserve.core.requests.request import InferenceRequest, ParameterValue
from modserve.core.requests.response import InferenceResponse, ResponseSink
from modserve.core.servable import Servable
from modserve.core.tenants import Tenant
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor
from modserve.core.version import ModelId
from modserve.recording import recorder as recorder_module
from modserve.recording.record import RecordFolder
from modserve.recording.recorder import Recorder
from modserve.testing import RecordingSink, config, request, tensor


class Submissions:
    """A servable that leaves the outcomes of its requests to the test."""

    def __init__(self, name: str = "model", refusal: Exception | None = None, **fields: Any) -> None:
        self.id = ModelId(name, 3)
        self.config = config(name, **fields)
        self.requests: list[Inflight] = []
        self._refusal = refusal

    def submit(self, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> Inflight:
        if self._refusal is not None:
            raise self._refusal
        self.requests.append(Inflight(request, sink, request.inputs, (), 1, None, now_ns))
        return self.requests[-1]


def output(value: Tensor | None = None) -> InferenceResponse:
    return InferenceResponse("model", 3, {"OUTPUT0": value or tensor(dtypes.INT32, (1, 4))})


class Bench:
    """A recorder over a folder, whose records are read when it is closed."""

    def __init__(
        self, place: Path, headers: tuple[str, ...] = (), draws: tuple[float, ...] = (), **fields: Any
    ) -> None:
        self.place = place
        size = fields.pop("size", 1 << 24)
        settings = RecordSettings(str(place), **{"rate": 1.0, **fields})
        folder = RecordFolder(place, size, "run", "server")
        numbers = iter(draws)
        self.recorder = Recorder(settings, folder, [re.compile(each) for each in headers], lambda: next(numbers))
        self.recorder.open()

    def send(self, servable: Submissions, sent: InferenceRequest, sink: ResponseSink | None = None) -> bool:
        """Whether it is sampled."""
        submitter = self.recorder.sample(cast(Servable, servable), sent)
        submitter.submit(sent, sink or RecordingSink(), 0)
        return submitter is not cast(object, servable)

    def records(self) -> list[dict[str, Any]]:
        self.recorder.close()
        assert self.recorder.held == 0
        paths = sorted(self.place.rglob("*.jsonl"))
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()[1:]]

    @property
    def dropped(self) -> dict[str, int]:
        return {reason: number for reason, number in self.recorder.figures.dropped.items() if number}


def test_a_request_with_its_response(tmp_path: Path) -> None:
    bench, servable, sink = Bench(tmp_path), Submissions(), RecordingSink()
    sent = request(id="7", version=2, parameters={"a": 1}, tenant=Tenant("acme"), outputs=("OUTPUT0",))
    assert bench.send(servable, sent, sink)
    servable.requests[0].settle(output())
    assert (len(sink.responses), sink.ended) == (1, 1)
    (record,) = bench.records()
    ones = {"datatype": "INT32", "shape": [1, 4], "base64": "AQAAAAEAAAABAAAAAQAAAA=="}
    (outcome,) = record.pop("outcomes")
    assert outcome.pop("after_us") > 0
    assert outcome == {"version": 3, "outputs": [{"name": "OUTPUT0", **ones}]}
    assert record.pop("at").endswith("Z")
    assert record == {
        "n": 1,
        "version": 2,
        "id": "7",
        "tenant": "acme",
        "parameters": {"a": 1},
        "requested": ["OUTPUT0"],
        "inputs": [{"name": "INPUT0", **ones}],
    }
    assert (bench.recorder.figures.recorded, bench.dropped) == (1, {})


def test_many_responses_come_in_order(tmp_path: Path) -> None:
    bench, servable, sink = Bench(tmp_path), Submissions(decoupled=True), RecordingSink()
    bench.send(servable, request(), sink)
    inflight = servable.requests[0]
    for value in range(3):
        inflight.settle(output(tensor(dtypes.INT32, (1, 1), value)), final=False)
    inflight.settle(None)
    (record,) = bench.records()
    assert record["decoupled"]
    values = [each["outputs"][0]["base64"] if "outputs" in each else None for each in record["outcomes"]]
    assert values == ["AAAAAA==", "AQAAAA==", "AgAAAA==", None]
    assert sorted(each["after_us"] for each in record["outcomes"]) == [each["after_us"] for each in record["outcomes"]]
    assert (len(sink.responses), sink.ended) == (3, 1)


def test_failures(tmp_path: Path) -> None:
    bench, servable = Bench(tmp_path), Submissions()
    for _ in range(2):
        bench.send(servable, request())
    servable.requests[0].settle(invalid("no"))
    servable.requests[1].cancel()
    for refusal in (invalid("wrong"), ValueError("unforeseen")):
        with pytest.raises(type(refusal), match=str(refusal)):
            bench.send(Submissions(refusal=refusal), request())
    errors = [each["error"] for record in bench.records() for each in record["outcomes"]]
    assert [each["code"] for each in errors] == ["INVALID_ARG", "CANCELLED", "INVALID_ARG", "INTERNAL"]
    assert errors[2]["message"] == "wrong"


def test_a_client_that_fails_is_recorded_all_the_same(tmp_path: Path) -> None:
    class Broken:
        def settle(self, outcome: object, final: bool) -> None:
            raise ValueError("the client's side")

    bench, servable = Bench(tmp_path), Submissions()
    bench.send(servable, request(), Broken())
    servable.requests[0].settle(output())
    assert len(bench.records()) == 1


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        ({"rate": 0.5}, {"bert": 0.5, "resnet50": 0.5}),
        ({"rate": 0.5, "models": (("res*", None),)}, {"bert": 0.0, "resnet50": 0.5}),
        ({"rate": 0.5, "models": (("*", None), ("res*", 1.0))}, {"bert": 0.5, "resnet50": 1.0}),
        ({"rate": 0.5, "models": (("*", 0.75), ("bert", 0.0))}, {"bert": 0.0, "resnet50": 0.75}),
    ],
)
def test_rates(tmp_path: Path, settings: dict[str, Any], rates: dict[str, float]) -> None:
    draws = tuple(number / 100 for number in range(100))
    for model, rate in rates.items():
        bench, servable = Bench(tmp_path, draws=draws, **settings), Submissions(model)
        assert sum(bench.send(servable, request(model=model)) for _ in range(100)) == round(100 * rate)


def test_sequences_are_sampled_as_a_whole_and_alike_in_all_workers(tmp_path: Path) -> None:
    def sampled(bench: Bench, **parameters: ParameterValue) -> bool:
        return bench.send(servable, request(parameters=parameters))

    servable = Submissions()
    benches = [Bench(tmp_path, rate=0.3) for _ in range(2)]
    ids: list[ParameterValue] = [*range(1, 500), *(f"id-{number}" for number in range(500))]
    chosen = [sampled(benches[0], sequence_id=id, sequence_start=True) for id in ids]
    assert chosen == [sampled(benches[1], sequence_id=id) for id in ids]
    assert 240 < sum(chosen) < 360


def test_redacted_tensors_have_a_shape_and_no_content(tmp_path: Path) -> None:
    bench = Bench(tmp_path, redacted=(("mod*", "SECRET*"), ("other", "INPUT0")))
    servable, secret = Submissions(), np.array([b"the secret"], object)
    inputs = {"SECRET_IN": Tensor.from_array(secret), "INPUT0": tensor(dtypes.INT32, (1,))}
    bench.send(servable, request(inputs))
    held = bench.recorder.held
    servable.requests[0].settle(InferenceResponse("model", 3, {"SECRET_OUT": Tensor.from_array(secret)}))
    (record,) = bench.records()
    assert record["inputs"][0] == {"name": "SECRET_IN", "datatype": "BYTES", "shape": [1], "redacted": True}
    assert "base64" in record["inputs"][1]
    assert record["outcomes"][0]["outputs"][0]["redacted"]
    assert held < 4096
    assert b"secret" not in b"".join(path.read_bytes() for path in tmp_path.rglob("*.jsonl"))


def test_parameters_that_may_be_headers_are_left_out(tmp_path: Path) -> None:
    bench, servable = Bench(tmp_path, headers=("^x-", "^trace")), Submissions()
    parameters: dict[str, ParameterValue] = {"Authorization": "Bearer s3cret", "x-user": "s3cret", "own": 1}
    bench.send(servable, request(parameters=parameters))
    servable.requests[0].settle(output())
    (record,) = bench.records()
    assert record["parameters"] == {"own": 1}
    assert record["left_out"] == ["Authorization", "x-user"]
    assert "s3cret" not in json.dumps(record)


@pytest.mark.parametrize("of_input", [True, False])
def test_memory_that_changes_later_is_copied(tmp_path: Path, of_input: bool) -> None:
    bench, servable = Bench(tmp_path), Submissions()
    shared = np.ones((1, 4), np.int32)  # as the memory of a client, who goes on writing to it
    view = Tensor.from_raw(dtypes.INT32, (1, 4), shared.reshape(-1).view(np.uint8).data)
    bench.send(servable, request({"INPUT0": view} if of_input else None))
    if of_input:
        shared[:] = 9
    servable.requests[0].settle(output() if of_input else output(Tensor.from_array(shared)))
    shared[:] = 9
    (record,) = bench.records()
    tensors = record["inputs"] + record["outcomes"][0]["outputs"]
    assert {each["base64"] for each in tensors} == {"AQAAAAEAAAABAAAAAQAAAA=="}


def test_what_is_too_large_or_too_much_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "MOST_OF_ONE", 20_000)
    monkeypatch.setattr(recorder_module, "MOST_HELD", 30_000)
    bench, servable = Bench(tmp_path), Submissions(decoupled=True)
    long = tensor(dtypes.INT32, (1, 4_000))
    sinks = [RecordingSink() for _ in range(4)]
    bench.send(servable, request({"INPUT0": tensor(dtypes.INT32, (1, 8_000))}), sinks[0])
    bench.send(servable, request({"INPUT0": long}), sinks[1])
    bench.send(servable, request({"INPUT0": long}), sinks[2])
    assert bench.dropped == {"too_large": 1, "memory": 1}
    servable.requests[1].settle(output(long), final=False)
    servable.requests[1].settle(output(), final=False)
    for inflight in servable.requests:
        inflight.settle(None)
    assert [(len(sink.responses), sink.ended) for sink in sinks[:3]] == [(0, 1), (2, 1), (0, 1)]
    (record,) = bench.records()
    assert (record["n"], record["cut"], len(record["outcomes"])) == (2, True, 1)


def test_a_slow_disk_holds_up_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "MOST_HELD", 10_000)
    bench, servable, gate = Bench(tmp_path), Submissions(), threading.Event()
    add = bench.recorder._folder.add
    monkeypatch.setattr(bench.recorder._folder, "add", lambda *line: gate.wait() and add(*line))
    sinks = [RecordingSink() for _ in range(10)]
    for number, sink in enumerate(sinks):
        bench.send(servable, request(), sink)
        servable.requests[number].settle(output())
    assert [sink.ended for sink in sinks] == [1] * 10
    assert bench.dropped["memory"] >= 5
    assert not bench.recorder._writer.close(0.01)
    gate.set()
    assert len(bench.records()) + bench.dropped["memory"] == 10


def test_a_full_disk_is_told_once_and_recording_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench, servable = Bench(tmp_path), Submissions()
    folder = bench.recorder._folder
    failures: list[Callable[[], None]] = []
    add = folder.add

    def full(*line: Any) -> None:
        if len(failures) < 3:
            failures.append(lambda: None)
            raise OSError(28, "No space left on device")
        add(*line)

    monkeypatch.setattr(folder, "add", full)
    with caplog.at_level(logging.ERROR):
        for number in range(5):
            bench.send(servable, request())
            servable.requests[number].settle(output())
        records = bench.records()
    assert [each["n"] for each in records] == [4, 5]
    assert bench.dropped == {"disk": 3}
    assert [each.message for each in caplog.records] == [
        "requests cannot be recorded, and are left out: [Errno 28] No space left on device"
    ]


def test_a_record_longer_than_all_files(tmp_path: Path) -> None:
    bench, servable = Bench(tmp_path, size=65_536), Submissions()
    bench.send(servable, request({"INPUT0": tensor(dtypes.INT32, (1, 20_000))}))
    servable.requests[0].settle(output())
    assert bench.records() == []
    assert bench.dropped == {"too_large": 1}


def test_a_tensor_that_cannot_be_read_spoils_only_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unreadable(tensor: Tensor) -> Tensor:
        raise RuntimeError("the device is gone")

    bench, servable, sink = Bench(tmp_path), Submissions(), RecordingSink()
    bench.send(servable, request(), sink)
    monkeypatch.setattr(recorder_module, "_copy", unreadable)
    with caplog.at_level(logging.CRITICAL):
        servable.requests[0].settle(output())
        bench.send(servable, request(), sink)
        servable.requests[1].settle(output())
    assert (len(sink.responses), sink.ended) == (2, 2)
    assert bench.records() == []
    assert bench.dropped == {"failure": 2}


def test_nothing_is_taken_after_the_end(tmp_path: Path) -> None:
    bench, servable = Bench(tmp_path), Submissions()
    bench.send(servable, request())
    bench.recorder.close()
    bench.recorder.close()
    servable.requests[0].settle(output())
    assert bench.records() == []
    assert bench.dropped == {"failure": 1}


def test_no_cycle_is_left(tmp_path: Path) -> None:
    bench, servable = Bench(tmp_path), Submissions()
    gc.collect()
    gc.disable()
    try:
        bench.send(servable, request())
        servable.requests.pop().settle(output())
        bench.records()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [each for each in gc.garbage if "modserve" in type(each).__module__]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == []
