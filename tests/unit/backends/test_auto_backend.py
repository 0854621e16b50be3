"""The engine of a model is chosen: by made-up engines and a made-up clock, through a server without sockets."""

import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from auto_engines import (
    DESCRIPTION,
    AsyncMadeUp,
    Clock,
    MadeUpEngine,
    MadeUpInstance,
    RequestMadeUp,
    write_artifact,
)

from modserve import InferenceServer, Settings
from modserve.backends import batch_trial, catalogue
from modserve.backends.auto.backend import AutoBackend
from modserve.backends.auto.candidates import Cpu
from modserve.backends.registry import BackendRegistry
from modserve.core.configuration.model_config import DescribedTensor
from modserve.core.errors import invalid
from modserve.core.lifecycle import LifecycleState
from modserve.core.pip_command import pip_install
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array
from modserve.protocol.control import metadata

ORT, OV = "onnxruntime", "openvino"
BF16_CPU = Cpu("made up", frozenset({"avx512_bf16"}))
INT8_CPU = Cpu("made up", frozenset({"avx512_bf16", "avx512_vnni"}))
NO_INT8 = "this CPU cannot compute int8: it needs one of avx512_vnni, avx_vnni, amx_int8, asimddp, i8mm"
BASE = 0.010


class Workbench:
    """A repository with one model, and the two engines that take ONNX."""

    def __init__(self, directory: Path) -> None:
        self.repository = directory / "models"
        self.cache = directory / "cache"
        self.clock = Clock()
        self.engines = {
            ORT: MadeUpEngine(self.clock, {"fp32": BASE, "int8": BASE * 0.6}, {"int8": 0.1}),
            OV: MadeUpEngine(
                self.clock,
                {"fp32": BASE * 0.8, "bf16": BASE * 0.4, "int8": BASE * 0.3},
                {"fp32": 1e-5, "bf16": 0.01, "int8": 0.03},
            ),
        }
        self.cpu = BF16_CPU
        self.options: dict[str, str] = {}
        self.engine_options: dict[str, dict[str, str]] = {}
        self.default: Literal["file", "auto"] = "file"
        self.write()

    def write(self, text: str = "", file: str = "model.onnx", backend: str = "auto", **parameters: object) -> None:
        lines = [
            f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in parameters.items()
        ]
        write_artifact(self.repository, "m", "\n".join([f'backend: "{backend}"', text, *lines]), file)

    @asynccontextmanager
    async def served(self, control: Literal["none", "explicit"] = "none") -> AsyncIterator[InferenceServer]:
        registry = BackendRegistry(dict(self.engines))
        auto = AutoBackend(registry, self.cpu, self.clock, self.clock.sleep)
        settings = Settings(
            model_repository=self.repository,
            default_backend=self.default,
            model_control_mode=control,
            backend_config={
                "auto": {"cache-dir": str(self.cache), **self.options},
                "modular": {"cache-dir": ""},
                **self.engine_options,
            },
        )
        backends: dict[str, Any] = {"auto": auto, "modular": auto, **self.engines}
        async with InferenceServer(settings, backends=backends) as server:
            yield server
        assert [(each.open_models, each.open_instances) for each in self.engines.values()] == [(0, 0)] * 2

    async def report(self) -> dict[str, Any]:
        """Of a model that has loaded, and responds."""
        async with self.served() as server:
            assert [entry.state for entry in server.index()] == [LifecycleState.READY], server.index()[0].reason
            open_models = sum(each.open_models for each in self.engines.values())
            open_instances = sum(each.open_instances for each in self.engines.values())
            config = server.model("m").config
            assert (open_models, open_instances) == (1, sum(group.count for group in config.instance_groups))
            response = await server.infer("m", {"IN": np.full((1, 4), 3, np.float32)})
            assert response.outputs["OUT"].array.tolist() == [[pytest.approx(6, rel=0.05)] * 4]
            return metadata.engine_json(server.model("m"))

    async def refusal(self) -> str:
        async with self.served() as server:
            (entry,) = server.index()
            assert entry.state is LifecycleState.UNAVAILABLE
            return entry.reason


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workbench:
    """Its clock counts what is measured, not the trial of what may share a batch."""
    monkeypatch.setattr(batch_trial, "batching_obstacle", lambda *arguments: "")
    return Workbench(tmp_path)


class Saturated(MadeUpInstance):
    """Its outputs are 1, whatever the inputs are."""

    def execute(self, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, Array]:
        return {"OUT": np.ones_like(super().execute(inputs, outputs)["OUT"])}


def chosen(report: Mapping[str, Any]) -> tuple[str, str]:
    return report["chosen_backend"], report["precision"]


def whys(report: Mapping[str, Any]) -> list[str]:
    return [row.get("why", "") for row in report["candidates"]]


async def test_the_fastest_at_full_precision_serves_by_default(
    bench: Workbench, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        report = await bench.report()
    assert chosen(report) == (OV, "fp32")
    assert report["engine"] == "OpenVINO"
    first, second, third, *int8 = report["candidates"]
    assert [row["why"] for row in int8] == [NO_INT8] * 2
    assert (first["seconds"], first["error"]) == (pytest.approx(4 * BASE), 0)
    assert (second["seconds"], second["error"]) == (pytest.approx(3.2 * BASE), pytest.approx(1e-5, rel=0.1))
    assert "bf16 is not allowed: the tolerance is 0.001, for fp32 only" in third["why"]
    assert "seconds" not in third
    assert report["reason"].startswith("OpenVINO fp32 takes 32 ms, 1.25 times as fast as ONNX Runtime fp32 with 40 ms")
    assert (report["objective"], report["batch_size"], report["samples"]) == ("throughput", 4, "generated data")
    assert report["reference"] == "ONNX Runtime fp32"
    (line,) = [record.getMessage() for record in caplog.records if "times as fast" in record.getMessage()]
    assert line.startswith("model 'm', version 1: OpenVINO fp32 takes 32 ms")
    assert [row.split()[0] for row in line.splitlines()[2:]] == ["ONNX", "→", "OpenVINO", "ONNX", "OpenVINO"]


async def test_a_wider_tolerance_admits_bf16(bench: Workbench) -> None:
    bench.write(tolerance="0.05")
    report = await bench.report()
    assert chosen(report) == (OV, "bf16")
    assert "error 0.01" in report["reason"]


async def test_a_wider_tolerance_admits_int8(bench: Workbench, caplog: pytest.LogCaptureFixture) -> None:
    bench.cpu = INT8_CPU
    bench.write(tolerance="0.05")
    with caplog.at_level(logging.INFO):
        report = await bench.report()
    assert chosen(report) == (OV, "int8")
    assert report["reason"].startswith("OpenVINO int8 takes 12 ms")
    assert report["reason"].endswith("error 0.03 on generated data")
    assert report["reason"] in caplog.text
    assert report["chosen_parameters"] == {"INFERENCE_PRECISION_HINT": "f32", "WEIGHT_COMPRESSION": "int8"}
    assert whys(report)[3] == "its outputs differ from those of ONNX Runtime fp32 by 0.1; the tolerance is 0.05"
    bench.write(tolerance="0.02")
    assert chosen(await bench.report()) == (OV, "bf16"), "the fastest of those that keep it"


async def test_int8_is_not_tried_unless_a_tolerance_asks_for_it(bench: Workbench) -> None:
    bench.cpu = INT8_CPU
    report = await bench.report()
    assert chosen(report) == (OV, "fp32")
    assert [why.partition(":")[0] for why in whys(report)[2:]] == [
        f"{each} is not allowed" for each in ("bf16", *["int8"] * 2)
    ]
    precisions = [dict(source.config.parameters) for source in bench.engines[OV].sources]
    assert precisions == [{"INFERENCE_PRECISION_HINT": "f32"}]


async def test_without_the_package_that_quantises(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "is_installed", lambda module: module != "onnx")
    bench.cpu = INT8_CPU
    bench.write(tolerance="0.2")
    report = await bench.report()
    assert whys(report)[3] == f"int8 needs the package onnx: {pip_install('quantization')}"
    assert chosen(report) == (OV, "int8")
    monkeypatch.setattr(catalogue, "is_installed", lambda module: True)
    assert not (await bench.report())["from_cache"], "the package came: another measurement"


async def test_outputs_that_cannot_be_judged(bench: Workbench) -> None:
    """The reference returns the same everywhere: nothing shows what a lower precision does."""
    bench.cpu = INT8_CPU
    bench.write(tolerance="0.05")
    for engine in bench.engines.values():
        engine.kind = Saturated
    async with bench.served() as server:
        report: dict[str, Any] = metadata.engine_json(server.model("m"))
    assert chosen(report) == (OV, "fp32")
    reason = "output 'OUT' is the same everywhere on generated data, so nothing shows how exact {} is"
    assert whys(report)[2:] == [reason.format(each) for each in ("bf16", "int8", "int8")]


async def test_a_model_that_comes_back_is_not_measured_again(bench: Workbench, tmp_path: Path) -> None:
    """Reloaded, changed in place, or evicted: also where nothing can be kept on disk."""
    for cache in (bench.cache, Path("none"), tmp_path / "models" / "m" / "config.pbtxt"):
        bench.cache = cache
        async with bench.served("explicit") as server:
            await server.load_model("m")
            first: dict[str, Any] = metadata.engine_json(server.model("m"))
            assert not first["from_cache"]
            before = bench.clock.now
            await server.unload_model("m")
            await server.load_model("m")
            bench.write("dynamic_batching { max_queue_delay_microseconds: 5 }")
            await server.load_model("m")
            bench.write()
            again: dict[str, Any] = metadata.engine_json(server.model("m"))
        assert bench.clock.now == before, cache
        assert again == {**first, "from_cache": True}


async def test_a_tolerance_that_bf16_does_not_keep(bench: Workbench) -> None:
    bench.options = {"tolerance": "0.005"}
    report = await bench.report()
    assert chosen(report) == (OV, "fp32")
    assert whys(report)[2] == "its outputs differ from those of ONNX Runtime fp32 by 0.01; the tolerance is 0.005"
    assert report["candidates"][2]["seconds"] == pytest.approx(1.6 * BASE), "so that one knows what it would bring"


async def test_exact_outputs(bench: Workbench) -> None:
    bench.write(tolerance="exact")
    report = await bench.report()
    assert chosen(report) == (ORT, "fp32")
    assert "the tolerance is exact" in whys(report)[1]
    assert report["reason"] == "ONNX Runtime fp32 is the only one of them that may be chosen"


@pytest.mark.parametrize(("share", "expected"), [(0.98, ORT), (0.96, OV)])
async def test_a_tie_goes_to_the_reference(bench: Workbench, share: float, expected: str) -> None:
    bench.engines[OV].seconds = {"fp32": BASE * share, "bf16": BASE}
    report = await bench.report()
    assert chosen(report) == (expected, "fp32")
    if expected == ORT:
        assert "2.0% faster, which may be noise" in report["reason"]


async def test_the_slower_falls_out_early(bench: Workbench) -> None:
    report = await bench.report()
    assert [row.get("rounds") for row in report["candidates"]] == [3, 3, None, None, None]


async def test_a_cpu_without_bf16(bench: Workbench) -> None:
    bench.cpu = Cpu("old", frozenset())
    bench.write(tolerance="0.05")
    report = await bench.report()
    assert chosen(report) == (OV, "fp32")
    assert whys(report)[2].startswith("this CPU cannot compute bf16")


async def test_only_some_engines_may_serve(bench: Workbench) -> None:
    bench.write(engines=ORT)
    report = await bench.report()
    assert chosen(report) == (ORT, "fp32")
    other = "it is not among the engines that may be chosen: onnxruntime"
    assert whys(report)[1:] == [other, other, NO_INT8, NO_INT8]
    assert bench.engines[OV].sources == []
    assert bench.clock.now == BASE, "nothing was measured: that was the one request"
    assert report["reason"] == "ONNX Runtime fp32 is the only engine here that can serve it"


@pytest.mark.parametrize("step", ["open", "describe", "instance", "execute"])
async def test_an_engine_that_fails_is_a_row(bench: Workbench, step: str) -> None:
    bench.engines[OV].failures = {step: RuntimeError("it has no such\n  operator")}
    report = await bench.report()
    assert chosen(report) == (ORT, "fp32")
    assert whys(report)[1] == "it has no such operator"


@pytest.mark.parametrize("step", ["open", "describe", "instance", "execute"])
async def test_without_the_reference_the_next_one_is(bench: Workbench, step: str) -> None:
    bench.engines[ORT].failures = {step: RuntimeError("broken")}
    bench.write(tolerance="0.05")
    report = await bench.report()
    assert chosen(report) == (OV, "bf16")
    assert (report["reference"], whys(report)) == (
        "OpenVINO fp32",
        ["broken", "", "", NO_INT8, NO_INT8],
    )


@pytest.mark.parametrize("step", ["open", "describe"])
async def test_none_is_left(bench: Workbench, step: str) -> None:
    for name, engine in bench.engines.items():
        engine.failures = {step: invalid(f"{name} cannot read it")}
    reason = await bench.refusal()
    assert reason.startswith("Invalid argument: model 'm': no engine can serve")
    assert "\n  ONNX Runtime fp32: onnxruntime cannot read it\n  OpenVINO fp32: openvino cannot read it\n" in reason


async def test_samples_that_nobody_can_run(bench: Workbench, caplog: pytest.LogCaptureFixture) -> None:
    """Then they are to blame, and the reference serves; the choice is not kept."""
    for engine in bench.engines.values():
        engine.failures = {"execute": ValueError("ids are too large")}
    async with bench.served() as server:
        report: dict[str, Any] = metadata.engine_json(server.model("m"))
    assert chosen(report) == (ORT, "fp32")
    assert "no engine could run the samples (ids are too large): model_warmup or" in report["reason"]
    assert "no engine could run the samples" in caplog.text
    assert not bench.cache.exists()


async def test_engines_that_cannot_be_run_with_batches(bench: Workbench) -> None:
    for engine in bench.engines.values():
        engine.kind = RequestMadeUp
    async with bench.served() as server:
        report: dict[str, Any] = metadata.engine_json(server.model("m"))
    assert chosen(report) == (ORT, "fp32")
    assert "the engine takes requests one by one" in report["reason"]


async def test_an_engine_that_sees_other_tensors(bench: Workbench) -> None:
    other = (DescribedTensor("OUT", dtypes.FP32, (-1, 4)), DescribedTensor("MORE", dtypes.FP32, (-1, 4)))
    bench.engines[OV].description = replace(DESCRIPTION, outputs=other)
    report = await bench.report()
    assert chosen(report) == (ORT, "fp32")
    assert whys(report)[1] == "it finds other inputs, outputs or batches in it than ONNX Runtime fp32"


async def test_a_configuration_that_does_not_fit_is_told_as_by_the_engine(bench: Workbench) -> None:
    bench.write('max_batch_size: 2 input [ { name: "NO" data_type: TYPE_FP32 dims: [ 4 ] } ]')
    reason = await bench.refusal()
    assert "unexpected inference input 'NO', allowed inputs are: IN" in reason


async def test_latency_is_measured_with_one_row(bench: Workbench) -> None:
    bench.write(objective="latency")
    report = await bench.report()
    assert (report["objective"], report["batch_size"]) == ("latency", 1)
    assert report["candidates"][0]["seconds"] == pytest.approx(BASE)
    assert set(bench.engines[ORT].batches[:2]) == {1, 4}, "both sizes are compared"


async def test_an_engine_on_the_event_loop_with_several_executions_at_a_time(bench: Workbench) -> None:
    instances: list[AsyncMadeUp] = []

    def make(model: Any) -> AsyncMadeUp:
        instances.append(AsyncMadeUp(model))
        return instances[-1]

    bench.engines[OV].kind = make
    report = await bench.report()
    assert chosen(report) == (OV, "fp32")
    assert [each.most for each in instances] == [4, 1], "the measured one, and the one that served a request"
    instances.clear()
    bench.write(objective="latency")
    await bench.report()
    assert [each.most for each in instances] == [1, 1]


async def test_the_time_is_over_before_all_have_run(bench: Workbench) -> None:
    bench.write(budget_seconds=str(BASE), tolerance="0.05")
    report = await bench.report()
    assert chosen(report) == (ORT, "fp32")
    assert whys(report)[1:3] == ["the 0.01 s for measuring ended before it had run"] * 2


async def test_a_slow_engine_overruns_the_time_by_one_execution_at_most(bench: Workbench) -> None:
    """The reference stops after one of its samples, and there is nothing to compare others with."""
    bench.write(budget_seconds=str(BASE / 2), tolerance="0.05")
    async with bench.served() as server:
        report: dict[str, Any] = metadata.engine_json(server.model("m"))
    assert bench.clock.now == pytest.approx(BASE), "of two samples, and what is timed"
    assert report["reason"] == (
        "ONNX Runtime fp32 is the default; the 0.005 s for measuring ended before it had run all samples"
    )
    assert whys(report)[1:3] == ["the 0.005 s for measuring ended before it had run"] * 2
    assert report["measuring_seconds"] == pytest.approx(BASE)


async def test_an_engine_that_has_no_time_for_all_samples_is_left_out(bench: Workbench) -> None:
    """The reference takes 1 + 4 + 4 rows; the next one begins with one, before the time is over."""
    bench.write(budget_seconds=str(9.5 * BASE), tolerance="0.05")
    async with bench.served() as server:
        report: dict[str, Any] = metadata.engine_json(server.model("m"))
    assert bench.clock.now == pytest.approx(9.8 * BASE)
    assert chosen(report) == (ORT, "fp32")
    over = "the 0.095 s for measuring ended before it had run"
    assert whys(report)[1:3] == [f"{over} all samples", over]


async def test_the_time_is_over_before_the_race(bench: Workbench) -> None:
    """Then what the first executions took has to do."""
    bench.write(budget_seconds=str(16 * BASE))
    async with bench.served() as server:
        report: dict[str, Any] = metadata.engine_json(server.model("m"))
    assert bench.clock.now == pytest.approx(16.2 * BASE)
    assert chosen(report) == (OV, "fp32")
    assert [row.get("rounds") for row in report["candidates"]] == [1, 1, None, None, None]


# What engines get


async def test_each_engine_gets_what_is_its_own(bench: Workbench) -> None:
    bench.engine_options = {ORT: {"default-max-batch-size": "9"}, OV: {"x": "y"}}
    bench.write(
        "instance_group [ { count: 2 kind: KIND_CPU } ]",
        **{"openvino.NUM_STREAMS": "3", "onnxruntime.execution_mode": "1", "tolerance": "0.05"},
    )
    report = await bench.report()
    assert chosen(report) == (OV, "bf16")
    ((ort,), (fp32, bf16)) = bench.engines[ORT].sources, bench.engines[OV].sources
    assert (ort.config.backend, ort.config.parameters, ort.options) == (
        ORT,
        {"execution_mode": "1"},
        {"default-max-batch-size": "9"},
    )
    assert [dict(each.config.parameters) for each in (fp32, bf16)] == [
        {"NUM_STREAMS": "3", "INFERENCE_PRECISION_HINT": "f32"},
        {"NUM_STREAMS": "3", "INFERENCE_PRECISION_HINT": "bf16"},
    ]
    assert ort.path == fp32.path == bench.repository / "m" / "1" / "model.onnx"
    assert {spec.config.backend for spec in bench.engines[OV].specs} == {OV}
    assert [spec.name for spec in bench.engines[OV].specs] == ["m_measured", "m_measured", "m_0_0", "m_0_1"]
    assert bench.engines[OV].specs[-1].config.inputs[0].name == "IN"
    assert report["instances"] == {"count": 2, "kinds": {"KIND_CPU": 2}}


async def test_what_the_engine_says_of_itself_is_in_the_report(bench: Workbench) -> None:
    bench.engines[OV].said = {"streams": 2, "threads": 7, "precision": "f32"}
    report = await bench.report()
    assert (report["streams"], report["threads"], report["precision"], report["backend"]) == (2, 7, "f32", "auto")


async def test_any_thread_is_that_of_the_model(bench: Workbench) -> None:
    auto = AutoBackend(BackendRegistry(dict(bench.engines)), bench.cpu, bench.clock)
    assert auto.any_thread
    async with bench.served() as server:
        opened: Any = server.model("m")
        assert opened._engine.any_thread is True
        assert bench.engines[OV].any_thread is False


async def test_parameters_without_effect(bench: Workbench, caplog: pytest.LogCaptureFixture) -> None:
    bench.write(tolerence="1")
    await bench.report()
    assert "did you mean 'tolerance'?" in caplog.text


# The samples of the configuration


async def test_the_warmup_of_the_configuration_is_measured(bench: Workbench) -> None:
    bench.write(
        """
        max_batch_size: 8
        model_warmup [ { name: "w" batch_size: 3 inputs { key: "IN" value
            { data_type: TYPE_FP32 dims: [ 4 ] random_data: true } } } ]
        """
    )
    report = await bench.report()
    assert (report["samples"], report["batch_size"], report["sample_shapes"]) == ("model_warmup", 3, [{"IN": [3, 4]}])
    assert set(bench.engines[ORT].batches) == {3}


async def test_a_warmup_that_is_wrong_fails_the_load(bench: Workbench) -> None:
    bench.write('model_warmup [ { name: "w" inputs { key: "NO" value { data_type: TYPE_FP32 dims: 4 } } } ]')
    assert "warm-up sample 'w', input 'NO': it has no data; expected one of zero_data," in await bench.refusal()
    bench.write('model_warmup [ { inputs { key: "NO" value { data_type: TYPE_FP32 dims: 4 zero_data: true } } } ]')
    assert "sample 'number 1' has an input 'NO', but the inputs of the model are 'IN'" in await bench.refusal()


# Batch size and instances


async def test_batches_and_instances_are_tuned_where_the_configuration_leaves_them_open(bench: Workbench) -> None:
    """A row of these engines takes as long in whichever batch, and their clock adds up what runs side by side."""
    bench.write(tune="batch, instances")
    report = await bench.report()
    assert chosen(report) == (OV, "fp32")
    assert (report["tuned"]["batch_size"], report["tuned"]["instances"]) == (1, 1)
    assert {(row["instances"], row["batch_size"]) for row in report["tuned"]["settings"]} >= {(1, 1), (1, 2), (1, 4)}
    async with bench.served() as server:
        config = server.model("m").config
        assert (config.max_batch_size, [group.count for group in config.instance_groups]) == (1, [1])
        assert metadata.engine_json(server.model("m"))["from_cache"]


@pytest.mark.parametrize(
    ("text", "tune", "why"),
    [
        ("max_batch_size: 2 instance_group [ { count: 1 } ]", "batch,instances", "says how large batches are"),
        ("max_batch_size: 2", "batch", "says how large batches are"),
    ],
)
async def test_what_the_configuration_says_is_not_tuned(
    bench: Workbench, text: str, tune: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench.write(text, tune=tune)
    report = await bench.report()
    assert "tuned" not in report
    assert f"model 'm' is not tuned: its configuration {why}" in caplog.text


async def test_only_one_of_both_is_tuned(bench: Workbench) -> None:
    bench.write("max_batch_size: 2", tune="instances")
    report = await bench.report()
    assert report["tuned"]["batch_size"] == 0
    assert {row["batch_size"] for row in report["tuned"]["settings"]} == {2}
    async with bench.served() as server:
        assert server.model("m").config.max_batch_size == 2


async def test_instances_that_are_faster_together(bench: Workbench) -> None:
    """Two instances take the time of one: each execution counts half when there are two of them."""
    bench.engines[OV].side_by_side = True
    bench.write(tune="instances")
    report = await bench.report()
    counts = {row["instances"] for row in report["tuned"]["settings"]}
    assert report["tuned"]["instances"] == max(counts)
    assert report["instances"]["count"] == max(counts)
    source = bench.engines[OV].sources[-1]
    assert source.cpu_instances == max(counts)
    assert source.cpu_threads * source.cpu_instances <= max(1, bench.engines[ORT].sources[0].cpu_threads)


async def test_settings_that_were_left_out_for_time_are_in_the_report(bench: Workbench) -> None:
    bench.write(tune="batch", budget_seconds="0.001", engines=OV)
    bench.engines[OV].seconds = {"fp32": 1.0, "bf16": 1.0}
    report = await bench.report()
    assert report["tuned"]["batch_size"] == 1
    assert report["tuned"]["settings"] == [
        {"instances": 1, "batch_size": 1, "rows_per_second": 1.0},
        {"instances": 1, "batch_size": 2, "why": "the 0.001 s for measuring ended before it had run"},
    ]


async def test_tuning_that_fails_changes_nothing(bench: Workbench, caplog: pytest.LogCaptureFixture) -> None:
    bench.write(tune="batch", objective="latency")
    report = await bench.report()
    assert "tuned" not in report
    assert "model 'm' is not tuned: the latency of single requests counts, not throughput" in caplog.text


# The cache


async def test_the_next_start_measures_nothing(bench: Workbench, caplog: pytest.LogCaptureFixture) -> None:
    first = await bench.report()
    (bench.engines[ORT].sources, bench.engines[OV].sources) = ([], [])
    before = bench.clock.now
    with caplog.at_level(logging.INFO):
        again = await bench.report()
    assert bench.clock.now == pytest.approx(before + BASE * 0.8), "the one request"
    assert (len(bench.engines[ORT].sources), len(bench.engines[OV].sources)) == (0, 1)
    assert again == {**first, "from_cache": True}
    assert not first["from_cache"]
    assert "(measured before)" in caplog.text


def swap_content(bench: Workbench) -> None:
    (bench.repository / "m" / "1" / "model.onnx").write_bytes(b"another graph")


def other_cpu(bench: Workbench) -> None:
    bench.cpu = Cpu("another", BF16_CPU.flags)


CHANGES: Mapping[str, Callable[[Workbench], None]] = {
    "content": swap_content,
    "cpu": other_cpu,
    "tolerance": lambda bench: bench.write(tolerance="0.0001"),
    "objective": lambda bench: bench.write(objective="latency"),
    "samples": lambda bench: bench.write(sample_shape="8"),
    "batch": lambda bench: bench.write("max_batch_size: 2"),
    "warmup": lambda bench: bench.write('model_warmup [ { name: "w" batch_size: 2 } ]'),
    "engines' options": lambda bench: bench.engine_options.update({OV: {"a": "b"}}),
    "threads": lambda bench: bench.write("instance_group [ { count: 2 kind: KIND_CPU } ]"),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_what_the_choice_depends_on(bench: Workbench, change: str) -> None:
    await bench.report()
    CHANGES[change](bench)
    assert not (await bench.report())["from_cache"]
    assert len(list(bench.cache.iterdir())) == 2


async def test_a_choice_that_fails_to_open_is_made_anew(bench: Workbench, caplog: pytest.LogCaptureFixture) -> None:
    await bench.report()
    bench.engines[OV].failures = {"open": invalid("its driver is gone")}
    report = await bench.report()
    assert chosen(report) == (ORT, "fp32")
    assert not report["from_cache"]
    assert "OpenVINO fp32 was chosen before, but now fails: its driver is gone" in caplog.text


async def test_a_file_in_the_cache_that_is_broken(bench: Workbench, caplog: pytest.LogCaptureFixture) -> None:
    await bench.report()
    (file,) = bench.cache.iterdir()
    assert json.loads(file.read_text())["choice"] == "openvino fp32"
    file.write_text("{")
    assert not (await bench.report())["from_cache"]
    assert "cannot be read and is made again" in caplog.text
    assert (await bench.report())["from_cache"]


# Files, and the other name


async def test_configurations_for_the_modular_engine(bench: Workbench, caplog: pytest.LogCaptureFixture) -> None:
    bench.write(
        'default_model_filename: "bert.onnx" instance_group { kind: KIND_CPU }',
        file="bert.onnx",
        backend="modular",
        **{"pretty-print-config": "1"},
    )
    report = await bench.report()
    assert (report["backend"], *chosen(report)) == ("modular", OV, "fp32")
    assert "backend 'modular' is served by 'auto', which ignores these parameters" in caplog.text
    assert [each.path.name for each in bench.engines[OV].sources] == ["bert.onnx"]


async def test_a_file_of_no_known_format(bench: Workbench) -> None:
    bench.write('default_model_filename: "model.gguf"', file="model.gguf")
    assert "is a file of another format; backend 'auto' takes ONNX (.onnx)" in await bench.refusal()


@pytest.mark.parametrize(("default", "backend"), [("auto", "auto"), ("file", ORT)])
async def test_models_whose_configuration_names_no_backend(
    bench: Workbench, default: Literal["file", "auto"], backend: str
) -> None:
    (bench.repository / "m" / "config.pbtxt").unlink()
    bench.default = default
    async with bench.served() as server:
        report: dict[str, Any] = metadata.engine_json(server.model("m"))
    assert report["backend"] == backend
    assert report.get("chosen_backend") == (OV if default == "auto" else None)
