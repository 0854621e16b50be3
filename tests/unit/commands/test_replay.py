"""``modserve replay``: the order of records, what of them can be sent, pace, comparison, and the report."""

import asyncio
import json
from argparse import Namespace
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modserve.client.errors import ClientError, ClientTimeoutError
from modserve.client.input_values import ClientCall, Result
from modserve.client.transport import ControlCall
from modserve.commands.replay.command import PARSER, tolerances
from modserve.commands.replay.record_index import (
    INCOMPLETE,
    REDACTED,
    UNANSWERED,
    UNSOUND,
    RecordIndex,
    RecordPlace,
    files_of,
    index_of,
)
from modserve.commands.replay.replay_report import Difference, Replayed, ReplayReport, compare_record
from modserve.commands.replay.replay_session import Pace, Target, replay
from modserve.commands.syntax import UsageError
from modserve.core.errors import Code, ModserveError
from modserve.core.requests.request import ParameterValue
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Tensor
from modserve.recording.record import FileHead, RecordedOutcome, RecordedTensor, RequestRecord, encode, head_line
from modserve.testing import tensor

AT_US = 1_700_000_000_000_000
ONE = tensor(dtypes.FP32, (2,))


def recorded(*tensors: Tensor) -> dict[str, RecordedTensor]:
    return {f"T{index}": RecordedTensor(each.datatype, each.shape, each) for index, each in enumerate(tensors)}


def record(number: int = 1, *outcomes: RecordedOutcome, **fields: Any) -> RequestRecord:
    if not outcomes:
        outcomes = (RecordedOutcome(1000.0, 1, recorded(ONE)),)
    fields = {"at_us": AT_US + number, "version": None, "inputs": recorded(ONE), **fields}
    return RequestRecord("m", number, outcomes=list(outcomes), **fields)


def in_sequence(number: int, id: ParameterValue, *, start: bool = False, **fields: Any) -> RequestRecord:
    parameters = {"sequence_id": id, "sequence_start": start}
    return record(number, parameters=parameters, **fields)


def write(path: Path, *records: RequestRecord, run: str = "r") -> Path:
    path.write_bytes(head_line(FileHead("m", run, "s")) + b"".join(b"".join(encode(each)) for each in records))
    return path


def hindrances(*files: Path) -> list[tuple[int, str]]:
    return [(place.number, place.hindrance) for place in index_of(files).places]


# Files


def test_records_of_several_files_are_in_the_order_of_arrival(tmp_path: Path) -> None:
    write(tmp_path / "b.jsonl", record(4), record(1))
    write(tmp_path / "a.jsonl", record(3), record(2))
    (tmp_path / "notes.txt").write_text("no records")
    index = index_of(files_of([tmp_path, tmp_path / "a.jsonl"]))
    assert (index.files, index.remarks) == (2, [])
    assert [place.number for place in index.places] == [1, 2, 3, 4]
    assert [str(place) for place in index.places[:2]] == [f"{tmp_path}/b.jsonl:3", f"{tmp_path}/a.jsonl:3"]
    assert [place.read().number for place in index.places] == [1, 2, 3, 4]


def test_half_a_line_at_the_end(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", record(1), record(2))
    whole = path.read_bytes()
    second = whole.index(b"\n", whole.index(b"\n") + 1) + 1
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        index = index_of([path])
        assert len(index.places) == (0 if size < second else 1), size
        head = whole.index(b"\n") + 1
        assert len(index.remarks) == (size not in (head, second)), size


def test_a_line_that_is_no_record(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", record(1), record(2))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1] + b"{}\n" + lines[2])
    index = index_of([path])
    assert [place.number for place in index.places] == [1, 2]
    assert index.remarks == [f"{path}:3 is left out: it is no record: KeyError('n')"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"modserve_record": 9}\n', "its format is 9, and this version of modserve reads format 1"),
        ("a,b\n", "it is no JSON"),
    ],
)
def test_files_of_others(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(ModserveError, match=message):
        index_of([tmp_path / "a.jsonl"])


def test_no_files(tmp_path: Path) -> None:
    for path, message in ((tmp_path, "no files of recorded requests"), (tmp_path / "x", "there is no file")):
        with pytest.raises(ModserveError, match=message):
            files_of([path])


# What can be sent


def test_what_says_nothing_of_the_model_is_not_sent(tmp_path: Path) -> None:
    redacted = {"T0": RecordedTensor(dtypes.FP32, (2,), None)}
    path = write(
        tmp_path / "a.jsonl",
        record(1, inputs=redacted),
        record(2, RecordedOutcome(1.0, code=Code.CANCELLED)),
        record(3, RecordedOutcome(1.0, code=Code.UNAVAILABLE)),
        record(4, RecordedOutcome(1.0, code=Code.INVALID_ARG)),
        record(5, RecordedOutcome(1.0, 1, redacted)),
    )
    assert hindrances(path) == [(1, REDACTED), (2, UNANSWERED), (3, UNANSWERED), (4, ""), (5, "")]


@pytest.mark.parametrize(
    ("datatype", "shape", "raw", "hindrance"),
    [
        (dtypes.FP32, (2,), bytes(8), ""),
        (dtypes.FP32, (2,), bytes(7), UNSOUND),
        (dtypes.FP32, (-1, -2), bytes(8), UNSOUND),
        (dtypes.INVALID, (2,), bytes(2), UNSOUND),
        (dtypes.BYTES, (2,), bytes(8), ""),
        (dtypes.BYTES, (3,), bytes(8), UNSOUND),
        (dtypes.BYTES, (1,), b"\xffff", UNSOUND),
    ],
)
def test_what_no_client_can_send(
    tmp_path: Path, datatype: dtypes.Datatype, shape: tuple[int, ...], raw: bytes, hindrance: str
) -> None:
    inputs = {"T0": RecordedTensor(datatype, shape, Tensor.from_raw(datatype, shape, raw))}
    refused = RecordedOutcome(1.0, code=Code.INVALID_ARG)
    assert hindrances(write(tmp_path / "a.jsonl", record(1, refused, inputs=inputs))) == [(1, hindrance)]


def test_sequences_are_sent_whole_or_not_at_all(tmp_path: Path) -> None:
    redacted = {"T0": RecordedTensor(dtypes.FP32, (2,), None)}
    path = write(
        tmp_path / "a.jsonl",
        in_sequence(1, 7),  # its start is in a file that is gone
        in_sequence(2, 8, start=True),
        in_sequence(3, "8", start=True),
        in_sequence(4, 8),
        in_sequence(5, "8", inputs=redacted),
        in_sequence(6, "8"),
        in_sequence(8, 8),  # number 7 is missing, which may have been of this sequence
        record(9),
        in_sequence(10, 8),
        in_sequence(11, "8", start=True),
        in_sequence(12, "8"),
        in_sequence(13, 8, start=True),
    )
    assert dict(hindrances(path)) == {
        1: INCOMPLETE,
        2: "",
        3: "",
        4: "",
        5: REDACTED,
        6: INCOMPLETE,
        8: INCOMPLETE,
        9: "",
        10: INCOMPLETE,
        11: "",
        12: "",
        13: "",
    }


def test_sequences_of_tenants_and_workers(tmp_path: Path) -> None:
    first = write(
        tmp_path / "a.jsonl",
        in_sequence(1, 7, start=True, tenant="a"),
        in_sequence(2, 7, tenant="b", at_us=AT_US + 2),
        run="r1",
    )
    second = write(tmp_path / "b.jsonl", in_sequence(9, 7, tenant="a", at_us=AT_US + 5), run="r2")
    assert hindrances(first, second) == [(1, ""), (2, INCOMPLETE), (9, "")]


# Sending


class FakeTransport:
    """Implements `AsyncTransport`: responds when the test says so."""

    def __init__(self, *failures: ClientError) -> None:
        self.calls: list[ClientCall] = []
        self.open = 0
        self.most = 0
        self.gates: dict[int, asyncio.Event] = {}
        self._failures = list(failures)

    async def start(self) -> None: ...

    async def call(self, control: ControlCall) -> Any: ...

    async def close(self) -> None: ...

    async def infer(self, call: ClientCall) -> Result:
        self.calls.append(call)
        self.open += 1
        self.most = max(self.most, self.open)
        gate = self.gates.get(len(self.calls))
        await (asyncio.sleep(0) if gate is None else gate.wait())
        self.open -= 1
        if self._failures:
            raise self._failures.pop()
        return Result(call.model, 1, {"T0": ONE})

    async def stream(self, call: ClientCall) -> AsyncGenerator[Result]:
        for _ in range(2):
            yield await self.infer(call)


def run(path: Path, transport: FakeTransport, target: Target | None = None, concurrency: int = 2) -> list[Replayed]:
    done: list[Replayed] = []
    places = [place for place in index_of([path]).places if not place.hindrance]
    work = replay(places, transport, target or Target(), Pace(), concurrency, lambda *each: done.append(each[2]))
    asyncio.run(work)
    return done


def test_requests_are_sent_as_they_were(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", record(1, id="7", version=3, requested=("T0",), parameters={"p": 1}))
    transport = FakeTransport()
    run(path, transport)
    (call,) = transport.calls
    found = (call.model, call.version, call.request_id, call.outputs, call.parameters, call.timeout)
    assert found == ("m", 3, "7", ("T0",), {"p": 1}, 60.0)
    assert np.array_equal(call.tensors["T0"].array, ONE.array)
    run(path, transport, Target("other", 5, 1.0))
    assert (transport.calls[1].model, transport.calls[1].version) == ("other", 5)


def test_a_limited_number_at_a_time(tmp_path: Path) -> None:
    transport = FakeTransport()
    run(write(tmp_path / "a.jsonl", *map(record, range(1, 20))), transport, concurrency=3)
    assert (len(transport.calls), transport.most) == (19, 3)


def test_requests_of_a_sequence_wait_for_each_other(tmp_path: Path) -> None:
    requests = [in_sequence(1 + number, 7, start=not number) for number in range(4)]
    transport = FakeTransport()
    run(write(tmp_path / "a.jsonl", *requests), transport, concurrency=4)
    assert transport.most == 1
    assert [call.parameters["sequence_start"] for call in transport.calls if call.parameters] == [True] + [False] * 3


def test_a_stream_is_one_request(tmp_path: Path) -> None:
    (replayed,) = run(write(tmp_path / "a.jsonl", record(1, decoupled=True)), FakeTransport())
    assert len(replayed.results) == 2


def test_failures_are_results_unless_nobody_is_there(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", record(1), record(2))
    late = ClientTimeoutError(Code.UNAVAILABLE, "no response within 60 s")
    done = run(path, FakeTransport(late, ClientError(Code.INTERNAL, "no", 500)))
    assert {str(each.failure) for each in done} == {"no", "no response within 60 s"}
    with pytest.raises(ExceptionGroup) as caught:
        run(path, FakeTransport(ClientError(Code.UNAVAILABLE, "cannot reach a server")))
    assert caught.group_contains(ClientError, match="cannot reach")


def place(number: int, at_us: int = 0) -> RecordPlace:
    return RecordPlace(Path("a"), number, 0, 0, "r", "m", number, at_us)


@pytest.mark.parametrize(
    ("pace", "due"),
    [(Pace(), [0.0, 0.0, 0.0]), (Pace(4.0), [0.0, 0.25, 0.5]), (Pace(original=True), [0.0, 1.5, 1.5])],
)
def test_paces(pace: Pace, due: list[float]) -> None:
    places = [place(1, 1_000_000), place(2, 2_500_000), place(3, 2_500_000)]
    assert [pace.due_s(each, number, places[0]) for number, each in enumerate(places)] == due


# Comparison


def differences(
    outcomes: list[RecordedOutcome], results: list[dict[str, Tensor]], failure: ClientError | None = None
) -> list[Difference]:
    replayed = Replayed([Result("m", 2, each) for each in results], failure)
    return compare_record(record(1, *outcomes), replayed, tolerances([])).differences


def response(*tensors: Tensor) -> RecordedOutcome:
    return RecordedOutcome(1.0, 1, recorded(*tensors))


def numbers(*values: float, datatype: dtypes.Datatype = dtypes.FP32) -> Tensor:
    return Tensor.from_array(np.array(values, datatype.numpy), datatype)


@pytest.mark.parametrize("datatype", [dtypes.FP64, dtypes.FP32, dtypes.FP16, dtypes.BF16], ids=str)
def test_floating_point_numbers_have_a_tolerance(datatype: dtypes.Datatype) -> None:
    old = numbers(1.0, float("nan"), float("inf"), 0.0, datatype=datatype)
    assert differences([response(old)], [{"T0": old}]) == []
    near = numbers(1.0 + 4e-9 * (datatype.size == 8), float("nan"), float("inf"), 1e-11, datatype=datatype)
    assert differences([response(old)], [{"T0": near}]) == []
    far = numbers(1.1, float("inf"), float("nan"), 0.1, datatype=datatype)
    (difference,) = differences([response(old)], [{"T0": far}])
    assert (difference.index, difference.unlike, difference.elements) == ((0,), 4, 4)
    assert float(difference.recorded) == 1.0
    assert difference.largest == pytest.approx(0.1, rel=0.05)


def test_tensors_of_any_shape_and_the_largest_numbers() -> None:
    for shape in ((), (0,), (2, 0), (1, 1, 1)):
        old = tensor(dtypes.FP64, shape, 1.7e308)
        assert differences([response(old)], [{"T0": old}]) == []
    scalar, other = tensor(dtypes.FP64, (), 1.7e308), tensor(dtypes.FP64, (), -1.7e308)
    (difference,) = differences([response(scalar)], [{"T0": other}])
    assert (difference.index, difference.unlike) == ((), 1)
    assert json.loads(json.dumps(difference.largest, allow_nan=False)) > 1.7e308
    integers = tensor(dtypes.INT64, (), 2**62), tensor(dtypes.INT64, (), 2**62 + 1)
    assert len(differences([response(integers[0])], [{"T0": integers[1]}])) == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (numbers(1, 2, datatype=dtypes.INT64), numbers(1, 3, datatype=dtypes.INT64)),
        (numbers(1, 0, datatype=dtypes.BOOL), numbers(1, 1, datatype=dtypes.BOOL)),
        (Tensor.from_array(np.array([b"a", b"b"], object)), Tensor.from_array(np.array([b"a", b"c"], object))),
    ],
)
def test_all_else_has_to_be_equal(old: Tensor, new: Tensor) -> None:
    assert differences([response(old)], [{"T0": old}]) == []
    (difference,) = differences([response(old)], [{"T0": new}])
    assert (difference.tensor, difference.index, difference.unlike) == ("T0", (1,), 1)


def test_outputs_that_are_others() -> None:
    shapes = differences([response(ONE)], [{"T0": tensor(dtypes.FP32, (3,))}])
    assert [(each.recorded, each.replayed) for each in shapes] == [("FP32 [2]", "FP32 [3]")]
    types = differences([response(ONE)], [{"T0": tensor(dtypes.FP64, (2,))}])
    assert [(each.recorded, each.replayed) for each in types] == [("FP32 [2]", "FP64 [2]")]
    names = differences([response(ONE)], [{"T9": ONE}])
    assert [(each.tensor, each.recorded, each.replayed) for each in names] == [
        ("T0", "FP32 [2]", "no such output"),
        ("T9", "no such output", "FP32 [2]"),
    ]


def test_redacted_outputs_are_compared_by_their_shapes() -> None:
    hidden = RecordedOutcome(1.0, 1, {"T0": RecordedTensor(dtypes.FP32, (2,), None)})
    assert differences([hidden], [{"T0": numbers(7, 8)}]) == []
    assert len(differences([hidden], [{"T0": numbers(7, 8, 9)}])) == 1


def test_failures_and_numbers_of_responses() -> None:
    failed = RecordedOutcome(1.0, code=Code.INVALID_ARG, message="old")
    assert differences([failed], [], ClientError(Code.INVALID_ARG, "other words", 400)) == []
    (kind,) = differences([failed], [], ClientError(Code.INTERNAL, "new", 500))
    assert (kind.recorded, kind.replayed) == ("INVALID_ARG: old", "INTERNAL: new")
    (now_well,) = differences([failed], [{"T0": ONE}])
    assert (now_well.recorded, now_well.replayed) == ("INVALID_ARG: old", "success")
    (now_failed,) = differences([response(ONE)], [], ClientError(Code.INTERNAL, "new", 500))
    assert (now_failed.recorded, now_failed.replayed) == ("success", "INTERNAL: new")
    end = RecordedOutcome(2.0, 1, {})
    assert differences([response(ONE), response(ONE), end], [{"T0": ONE}, {"T0": ONE}, {}]) == []
    (fewer,) = differences([response(ONE), response(ONE)], [{"T0": ONE}])
    assert (fewer.recorded, fewer.replayed) == ("2 responses", "1 response")


def test_tolerances() -> None:
    options = PARSER.read(["f", "--tolerance", "0.5", "--tolerance", "fp16=0.25:2"])
    allowed = tolerances(options.tolerance)
    assert (allowed["FP32"].relative, allowed["FP32"].absolute) == (0.5, 0.0)
    assert (allowed["FP16"].relative, allowed["FP16"].absolute) == (0.25, 2.0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tolerance", "INT8=1"], "expected [DATATYPE=]RELATIVE[:ABSOLUTE] with DATATYPE one of FP64, FP32"),
        (["--tolerance", "-1"], "RELATIVE"),
        (["--tolerance=nan"], "RELATIVE"),
        (["--rate", "0"], "expected 'original', 'max' or requests a second, got: 0"),
        (["--concurrency", "0"], "a number of 1 or more"),
    ],
)
def test_mistakes(words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        PARSER.read(["file", *words])
    assert message in str(caught.value)


# The report


@pytest.fixture
def report(tmp_path: Path) -> ReplayReport:
    written = [record(1), record(2), record(3), record(4, cut=True), in_sequence(5, 1)]
    index = index_of([write(tmp_path / "a.jsonl", *written)])
    made = ReplayReport(index, "http://there")
    new = [numbers(1, 1), numbers(1, 1.5), numbers(1, 1)]
    for each, values in zip(index.places, new, strict=False):
        replayed = Replayed([Result("m", 2, {"T0": values})], took_ns=2_000_000)
        made.add(each, each.read(), replayed, compare_record(each.read(), replayed, tolerances([])))
    made.add(index.places[3], written[3], Replayed(took_ns=1), None)
    return made


def test_the_report_for_people(report: ReplayReport) -> None:
    text = "\n".join(report.text(10))
    assert "5 requests in 1 file, recorded from 2023-11-14 22:13:20 UTC to 2023-11-14 22:13:20 UTC" in text
    assert "sent to http://there in 0.0 s: 2 equal, 1 different" in text
    assert "T0[1]             1.0       1.5  1 of 2    0.5" in text
    assert "1 request not compared: its sequence is incomplete" in text
    assert "1 request not compared: its responses are incomplete" in text
    assert "latency, ms             p50   p90   p99\n" in text


def test_the_report_as_json(report: ReplayReport) -> None:
    document = json.loads(json.dumps(report.document()))
    assert (document["records"], document["equal"], document["different"]) == (5, 2, 1)
    assert document["not_compared"] == {"its sequence is incomplete": 1, "its responses are incomplete": 1}
    assert document["models"]["m"]["largest_error"] == {"T0": 0.5}
    assert document["models"]["m"]["recorded_ms"] == {"p50": 1.0, "p90": 1.0, "p99": 1.0}
    (difference,) = document["differences"]
    assert (difference["model"], difference["tensor"], difference["index"]) == ("m", "T0", [1])
    assert difference["record"].endswith("a.jsonl:3")


def test_only_some_differences_are_shown(report: ReplayReport) -> None:
    report.differences *= 30
    assert "… and 20 more: --show N shows N, --json all" in "\n".join(report.text(10))
    report.differences = report.differences[:1] * 1000
    assert "beyond 1,000 differences, requests are only counted" in report.text(10)


def test_an_empty_report() -> None:
    text = "\n".join(ReplayReport(RecordIndex(), "u").text(1))
    assert "0 requests in 0 files" in text
    assert "latency" not in text


def test_one_other_model_for_all(tmp_path: Path) -> None:
    from modserve.commands.replay.command import work

    write(tmp_path / "a.jsonl", record(1))
    (tmp_path / "b.jsonl").write_bytes(head_line(FileHead("n", "r", "s")) + b"".join(encode(record(1))))
    options: Namespace = PARSER.read([str(tmp_path), "--model", "x"])
    with pytest.raises(UsageError, match="for the requests of one model, and the files have m, n"):
        work(options)
