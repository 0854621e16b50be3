"""What commands print of a running server, whose calls are played."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from modserve.client.transport import ENGINE, HEALTH, INDEX, SERVER, STATISTICS, Operation, Parameters
from modserve.commands import load, models, status_report, terminal
from modserve.commands.errors import RefusedError, UnreachableError
from modserve.commands.remote_server import RemoteServer
from modserve.commands.status_report import Health, IndexRow, ServerStatus, VersionUsage
from modserve.commands.syntax import UsageError
from modserve.core.errors import ModserveError
from modserve.core.statistics.time_parts import advice

READY = IndexRow("simple", "1", "READY", "")
FAILED = IndexRow("broken", "", "UNAVAILABLE", "Invalid argument: one\ntwo")
BROKEN = {"name": "broken", "version": "", "state": "UNAVAILABLE", "reason": "Invalid argument: one\ntwo"}
COUNTS = {
    "model_stats": [
        {
            "name": "simple",
            "version": "1",
            "last_inference": 990_000,
            "inference_count": 30,
            "execution_count": 10,
            "inference_stats": {
                "success": {"count": 20, "ns": 40_000_000},
                "fail": {"count": 2, "ns": 1},
                "queue": {"count": 20, "ns": 10_000_000},
            },
        }
    ]
}
USED = {("simple", "1"): VersionUsage(20, 30, 10, 2, total_ns=40_000_000, queue_ns=10_000_000, last_ms=990_000)}


class Played(RemoteServer):
    """Responds from a table; what is not in it is refused."""

    def __init__(self, table: dict[Operation, Any]) -> None:
        self._table = table

    def call(
        self, operation: Operation, model: str = "", version: int | None = None, parameters: Parameters | None = None
    ) -> Any:
        if operation not in self._table:
            raise RefusedError(f"{operation.rpc} is restricted")
        return self._table[operation]


class Silent(Played):
    """Refuses all but health, as after a drain."""

    def call(
        self, operation: Operation, model: str = "", version: int | None = None, parameters: Parameters | None = None
    ) -> Any:
        if operation is not HEALTH:
            raise RefusedError("Server not ready")
        return super().call(operation)


def test_looking_at_a_server() -> None:
    table = {
        SERVER: {"name": "modserve", "version": "1.0"},
        HEALTH: {"ready": False, "phase": "serving", "reasons": [BROKEN]},
        INDEX: [{"name": "simple", "version": "1", "state": "READY"}, {"name": "other"}],
        STATISTICS: COUNTS,
    }
    seen = status_report.server_status(Played(table))
    assert seen == ServerStatus(
        "modserve", "1.0", Health(False, "serving", [FAILED]), [READY, IndexRow("other", "", "", "")], USED, ()
    )
    del table[STATISTICS], table[SERVER]
    less = status_report.server_status(Played(table))
    assert (less.name, less.usage, less.unknown) == (
        "a server",
        {},
        ("ServerMetadata is restricted", "ModelStatistics is restricted"),
    )


def test_what_the_server_does_not_tell_is_no_number() -> None:
    """As at a client's port beside an admin port, and after a drain."""
    seen = status_report.server_status(Played({HEALTH: {"ready": True}}))
    assert "\n".join(status_report.lines(seen, "u")) == (
        "u: a server, ready\n"
        "\n"
        "models    -\n"
        "requests  -\n"
        "\n"
        "not shown: ServerMetadata is restricted\n"
        "\n"
        "not shown: RepositoryIndex is restricted\n"
        "\n"
        "not shown: ModelStatistics is restricted"
    )
    again = status_report.server_status(Silent({HEALTH: {"ready": True}}))
    assert again.unknown == ("Server not ready",)


def test_the_engine_of_a_version() -> None:
    played = Played({ENGINE: {"engine": "ONNX Runtime", "version": "1.2"}})
    assert status_report.engine(played, READY) == ("ONNX Runtime 1.2", "")
    assert status_report.engine(Played({}), READY) == ("", "")
    report = {"engine": "OpenVINO", "version": "2026.4", "precision": "int8", "reason": "it takes 3 ms; error 0.03"}
    assert status_report.engine(Played({ENGINE: report}), READY) == (
        "OpenVINO 2026.4 int8",
        "it takes 3 ms; error 0.03",
    )
    report["precision"] = "fp32"
    assert status_report.engine(Played({ENGINE: report}), READY)[0] == "OpenVINO 2026.4"


def test_status_of_a_server_that_is_not_ready() -> None:
    seen = ServerStatus("modserve", "1.0", Health(False, "serving", [FAILED]), [READY, FAILED], USED, ("not told",))
    assert "\n".join(status_report.lines(seen, "http://host")) == (
        "http://host: modserve 1.0, not ready (serving)\n"
        "\n"
        "models     2, versions: 1 READY, 1 UNAVAILABLE\n"
        "requests   20 succeeded, 2 failed\n"
        "batches    10, of 3.0 on average\n"
        "mean time  2 ms, of which 500 us in queues\n"
        "\n"
        "broken - is UNAVAILABLE\n"
        "    Invalid argument: one\n"
        "    two\n"
        "\n"
        "not shown: not told"
    )
    assert json.loads(json.dumps(status_report.document(seen, "u")))["reasons"] == [status_report.as_json(FAILED)]


def test_status_of_a_server_without_models() -> None:
    seen = ServerStatus("modserve", "1.0", Health(True), [])
    assert (
        "\n".join(status_report.lines(seen, "u", colours=True)).splitlines()[0]
        == "u: modserve 1.0, \x1b[32mready\x1b[0m"
    )
    assert "versions: none" in "\n".join(status_report.lines(seen, "u"))


def test_a_table_of_models() -> None:
    text = "\n".join(models.lines([READY, FAILED], USED, {READY.key: ("ONNX Runtime", "")}))
    assert text == (
        "model   version  state        engine        requests  failed  mean                  last\n"
        "------  -------  -----------  ------------  --------  ------  ----  --------------------\n"
        "simple  1        READY        ONNX Runtime        20       2  2 ms  1970-01-01 00:16:30Z\n"
        "broken  -        UNAVAILABLE  -                    -       -     -                     -\n"
        "    Invalid argument: one\n"
        "    two"
    )
    assert list(models.lines([], {}, {})) == ["The server has no models."]


def test_inputs_and_outputs_of_a_model() -> None:
    body = {
        "inputs": [{"name": "IN", "datatype": "FP32", "shape": ["-1", "16"]}],
        "outputs": [{"name": "OUT", "datatype": "BYTES", "shape": ["-1"]}],
    }
    assert "\n".join(models.describe_model("m", body)) == (
        "m       name  type   shape\n"
        "------  ----  -----  --------\n"
        "input   IN    FP32   [-1, 16]\n"
        "output  OUT   BYTES  [-1]\n"
        "\n"
        "modserve infer m IN=…"
    )
    assert list(models.describe_model("m", {})) == ["m is not ready: its inputs and outputs are unknown."]
    assert list(models.describe_model("m", {"name": "m"})) == ["m has no inputs and no outputs."]


def test_the_parts_of_the_time_of_a_model() -> None:
    used = {("m", "1"): VersionUsage(), ("m", "2"): USED["simple", "1"], ("n", "1"): USED["simple", "1"]}
    assert list(models.times("m", used)) == [
        "",
        "version  mean   queue  input  infer  output",
        "-------  ----  ------  -----  -----  ------",
        "1           -       -      -      -       -",
        "2        2 ms  500 us   0 us   0 us    0 us",
        f"version 2: {advice('m', 4, (1, 0, 0, 0))}",
    ]
    assert list(models.times("m", {})) == [], "a server that does not tell"


def test_why_a_model_has_its_engine() -> None:
    engines = {("m", "2"): ("OpenVINO int8", "it is fast"), ("m", "1"): ("ONNX Runtime", ""), ("n", "1"): ("x", "y")}
    assert list(models.reasons("m", engines)) == ["\nengine of version 2: it is fast"]
    rows = [IndexRow("m", "2", "READY", ""), IndexRow("m", "3", "LOADING", "")]
    made = models.document(rows, {}, engines, {})["models"]
    assert [(row["engine"], row["engine_reason"]) for row in made] == [("OpenVINO int8", "it is fast"), ("", "")]


def test_models_by_name() -> None:
    assert models.choose_rows([READY, FAILED], []) == [READY, FAILED]
    assert models.choose_rows([READY, FAILED], ["broken"]) == [FAILED]
    with pytest.raises(RefusedError, match="model 'simpel' does not exist; did you mean 'simple'"):
        models.choose_rows([READY], ["simpel"])
    with pytest.raises(RefusedError, match="model 'x' does not exist; the server has no models"):
        models.choose_rows([], ["x"])


# Loading


def test_parameters_of_a_load(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"backend": "identity"}')
    (tmp_path / "model.onnx").write_bytes(b"abc")
    config = str(tmp_path / "config.json")
    assert load.parameters("", []) == {}
    assert load.parameters(config, [f"1/model.onnx={tmp_path / 'model.onnx'}"]) == {
        "config": '{"backend": "identity"}',
        "file:1/model.onnx": b"abc",
    }
    with pytest.raises(UsageError, match="'--file' requires '--config'"):
        load.parameters("", ["a=b"])
    with pytest.raises(UsageError, match="expected PATH=FILE such as"):
        load.parameters(config, ["a"])
    with pytest.raises(ModserveError, match="option '--file': cannot read nosuch: No such file"):
        load.parameters(config, ["a=nosuch"])
    with pytest.raises(ModserveError, match=r"model\.onnx is not JSON"):
        load.parameters(str(tmp_path / "model.onnx"), [])


def test_each_of_several(capsys: pytest.CaptureFixture[str]) -> None:
    def work(name: str) -> str:
        if name == "b":
            raise RefusedError("b fails", "this helps")
        if name == "c":
            raise UnreachableError("gone")
        return f"{name} done"

    assert terminal.each(["a", "b", "a"], work) == 1
    assert capsys.readouterr() == ("a done\na done\n", "modserve: b fails\nmodserve: this helps\n")
    assert terminal.each(["a"], work) == 0
    with pytest.raises(UnreachableError):
        terminal.each(["c", "a"], work)


# Texts


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0000012, "1.2 us"), (0.000377, "377 us"), (0.0123, "12.3 ms"), (1.5, "1.5 s"), (3600, "3600 s"), (0, "0 us")],
)
def test_durations(seconds: float, text: str) -> None:
    assert terminal.duration(seconds) == text


@pytest.mark.parametrize(("bytes", "text"), [(0, "0 B"), (2048, "2 KiB"), (150 << 20, "150 MiB"), (3 << 40, "3 TiB")])
def test_sizes(bytes: float, text: str) -> None:
    assert terminal.size(bytes) == text


def test_colours_do_not_move_columns() -> None:
    plain = terminal.table(("a", "state"), [("x", "READY")])
    assert terminal.table(("a", "state"), [("x", "READY")], colours=True)[2] == "x  \x1b[32mREADY\x1b[0m"
    assert plain[2] == "x  READY"


def test_again_until_it_is_interrupted(capsys: pytest.CaptureFixture[str]) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    def outcomes() -> Iterator[Any]:
        yield from ("one", UnreachableError("nobody there"), "two")

    pending = outcomes()

    def draw() -> tuple[int, str]:
        outcome = next(pending)
        if isinstance(outcome, Exception):
            raise outcome
        return 1, outcome

    assert terminal.again(2.5, draw, sleep) == 0
    assert capsys.readouterr().out == "one\n\nnobody there\n\ntwo\n\n"
    assert waits == [2.5, 2.5, 2.5]
    texts: Sequence[tuple[int, str]] = [(1, "once")]
    assert terminal.again(None, lambda: texts[0]) == 1
    assert capsys.readouterr().out == "once\n"


def test_nothing_that_a_terminal_acts_on() -> None:
    assert terminal.table(("a",), [("\x1b[31mred",)])[2] == "\N{REPLACEMENT CHARACTER}[31mred"
    assert list(terminal.indent_lines("a\nb\r\x07")) == ["    a", "    b", "    \N{REPLACEMENT CHARACTER}"]
