"""Metadata, configuration and statistics: the same answer for both wires."""

from types import SimpleNamespace
from typing import cast

from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.requests.timing import ExecutionTiming
from modserve.core.servable import Servable
from modserve.core.statistics.model_statistics import ModelStatistics
from modserve.core.tenants import TenantReport
from modserve.core.tensors import dtypes
from modserve.core.version import ModelId
from modserve.pb import inference as pb
from modserve.protocol.control import metadata, statistics
from modserve.testing import config, inflight


def loaded(config: ModelConfig, version: int = 1, message: bytes = b"") -> Servable:
    """As much of a servable as answers are made of."""
    model_id = ModelId(config.name, version)
    found = SimpleNamespace(id=model_id, config=config, config_message=message, statistics=ModelStatistics())
    return cast(Servable, found)


INPUTS = (TensorSpec("A", dtypes.BYTES, (-1, 2)), TensorSpec("B", dtypes.BF16, (3,), reshape=(3, 1)))
OUTPUTS = (TensorSpec("C", dtypes.BOOL, ()),)


def test_server_metadata() -> None:
    assert metadata.server_json("triton", "1.2", ("a", "b")) == {
        "name": "triton",
        "version": "1.2",
        "extensions": ["a", "b"],
    }
    message = metadata.server_message("triton", "1.2", ("a", "b"))
    assert message == pb.ServerMetadataResponse(name="triton", version="1.2", extensions=["a", "b"])


def test_model_metadata_of_a_batching_model() -> None:
    model = loaded(config(inputs=INPUTS, outputs=OUTPUTS, platform="onnxruntime_onnx"))
    assert metadata.model_json(model, [1, 3]) == {
        "name": "model",
        "versions": ["1", "3"],
        "platform": "onnxruntime_onnx",
        "inputs": [
            {"name": "A", "datatype": "BYTES", "shape": [-1, -1, 2]},
            {"name": "B", "datatype": "BF16", "shape": [-1, 3]},
        ],
        "outputs": [{"name": "C", "datatype": "BOOL", "shape": [-1]}],
    }


def test_model_metadata_of_a_model_without_batches_and_platform() -> None:
    model = loaded(config(inputs=INPUTS, outputs=OUTPUTS, max_batch_size=0))
    found = metadata.model_json(model, [])
    assert found["platform"] == "identity"
    assert found["versions"] == []
    assert found["outputs"] == [{"name": "C", "datatype": "BOOL", "shape": []}]


def test_the_metadata_message_says_the_same() -> None:
    model = loaded(config(inputs=INPUTS, outputs=OUTPUTS))
    message, found = metadata.model_message(model, [1, 3]), metadata.model_json(model, [1, 3])
    for side in ("inputs", "outputs"):
        tensors = [
            {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
            for tensor in getattr(message, side)
        ]
        assert tensors == found[side]
    assert (message.name, list(message.versions), message.platform) == (
        found["name"],
        found["versions"],
        found["platform"],
    )


def test_the_configuration_is_echoed_with_what_nobody_acts_on() -> None:
    message = pb.ModelConfig(name="model", max_batch_size=4, runtime="r")
    model = loaded(config(), message=message.SerializeToString())
    assert metadata.config_message(model) == message
    assert metadata.config_json(model)["runtime"] == "r"


NOTHING = {"count": 0, "ns": 0}
DURATIONS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")


def test_statistics_before_any_request_have_every_key() -> None:
    assert statistics.json(statistics.message([loaded(config("simple"), 3)])) == {
        "model_stats": [
            {
                "name": "simple",
                "version": "3",
                "last_inference": 0,
                "inference_count": 0,
                "execution_count": 0,
                "inference_stats": dict.fromkeys(DURATIONS, NOTHING),
                "response_stats": {},
                "batch_stats": [],
                "memory_usage": [],
            }
        ]
    }


def test_statistics_of_tenants() -> None:
    results = {"accepted": 5, "refused_rate": 2, "refused_concurrency": 0, "refused_model": 1}
    report = TenantReport("search", results, rows=9, tokens=40, in_flight=2, waiting=1)
    assert statistics.json(statistics.message([], [report])) == {
        "model_stats": [],
        "tenant_stats": [
            {"name": "search", "requests": results, "rows": 9, "tokens": 40, "in_flight": 2, "waiting": 1}
        ],
    }


def test_statistics_after_two_requests_in_one_batch() -> None:
    model = loaded(config())
    timing = ExecutionTiming(3, "full")
    timing.compute_start_ns, timing.compute_input_end_ns = 100, 110
    timing.compute_output_start_ns, timing.compute_end_ns = 140, 141
    members = [inflight(2), inflight(1)]
    for member in members:
        member.request_start_ns, member.queue_start_ns = 10, 60
    model.statistics.record_execution(timing, members, 1_700_000_000_000)
    model.statistics.record_successes(members, timing, 150)
    assert statistics.json(statistics.message([model]))["model_stats"] == [
        {
            "name": "model",
            "version": "1",
            "last_inference": 1_700_000_000_000,
            "inference_count": 3,
            "execution_count": 1,
            "inference_stats": {
                "success": {"count": 2, "ns": 280},
                "fail": NOTHING,
                "queue": {"count": 2, "ns": 80},
                "compute_input": {"count": 2, "ns": 20},
                "compute_infer": {"count": 2, "ns": 60},
                "compute_output": {"count": 2, "ns": 2},
                "cache_hit": NOTHING,
                "cache_miss": NOTHING,
            },
            "response_stats": {},
            "batch_stats": [
                {
                    "batch_size": 3,
                    "compute_input": {"count": 1, "ns": 10},
                    "compute_infer": {"count": 1, "ns": 30},
                    "compute_output": {"count": 1, "ns": 1},
                }
            ],
            "memory_usage": [],
        }
    ]


def test_batch_statistics_are_in_order_of_size() -> None:
    model = loaded(config())
    for size in (4, 1, 8):
        model.statistics.record_execution(ExecutionTiming(size), [inflight(size)], 1)
    (answer,) = statistics.message([model]).model_stats
    assert [batch.batch_size for batch in answer.batch_stats] == [1, 4, 8]
