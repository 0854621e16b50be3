"""Command lines that were written for tritonserver: what they set acts, and what has no effect is said."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from repositories import write_identity
from server_here import serving_here, started_here
from server_process import Server, eventually
from wire import Ask, Input, http, http_infer

DELAY_MS = 60
LIMITED = """
parameters { key: "execute_delay_ms" value { string_value: "60" } }
"""
GROUP = "instance_group [ { count: 1 kind: KIND_CPU } ]"


def limited(repository: Path, name: str, resources: str) -> None:
    """A model of the rate limiter's: each execution takes `DELAY_MS`."""
    write_identity(repository, name, extra=LIMITED)
    file = repository / name / "config.pbtxt"
    group = f"instance_group [ {{ count: 1 kind: KIND_CPU rate_limiter {{ {resources} }} }} ]"
    assert GROUP in file.read_text()
    file.write_text(file.read_text().replace(GROUP, group))


def numbers(model: str) -> Ask:
    return Ask((Input("INPUT0", "INT32", (1, 4), np.arange(4, dtype=np.int32).tobytes()),), model=model)


def ask(server: Server, model: str) -> None:
    assert http_infer(server.http_port, numbers(model)).status == 200


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("shared")
    for name in ("a", "b"):
        limited(repository, name, 'resources [ { name: "R" count: 4 } ]')
    limited(repository, "small", 'resources [ { name: "S" global: true count: 1 } ] priority: 2')
    limited(repository, "greedy", 'resources [ { name: "R" count: 5 } ]')
    options = ["--rate-limit=execution_count", "--rate-limit-resource=R:4:0", "--rate-limit-resource", "S:3"]
    with serving_here(repository, options=options, errors=["Resource count for"]) as running:
        yield running


def at_once(server: Server, *models: str) -> float:
    """Seconds that requests to these models take, sent at the same time."""
    with ThreadPoolExecutor(len(models)) as pool:
        start = time.monotonic()
        list(pool.map(lambda model: ask(server, model), models))
        return time.monotonic() - start


def test_models_that_share_a_resource_take_turns(shared: Server) -> None:
    assert at_once(shared, "a", "b", "a", "b") >= 4 * DELAY_MS / 1e3


def test_another_resource_does_not_wait(shared: Server) -> None:
    eventually(lambda: at_once(shared, "a", "small") < 2 * DELAY_MS / 1e3)


def test_a_model_that_could_never_run_does_not_load(shared: Server) -> None:
    index = http(shared.http_port, "POST", "/v2/repository/index").json
    reason = next(entry["reason"] for entry in index if entry["name"] == "greedy")
    assert 'Resource count for "R" is limited to 4' in reason
    assert "the minimum required count is 5" in reason


def test_a_named_configuration(tmp_path: Path) -> None:
    for name in ("custom", "plain"):
        write_identity(tmp_path, name)
    config = (tmp_path / "custom" / "config.pbtxt").read_text()
    for name, file, text in (
        ("custom", "h100.pbtxt", config.replace("max_batch_size: 8", "max_batch_size: 32")),
        ("plain", "a10.pbtxt", "nonsense"),
    ):
        (tmp_path / name / "configs").mkdir()
        (tmp_path / name / "configs" / file).write_text(text)
    for options, size in (([], 8), (["--model-config-name=h100"], 32), (["--model-config-name", "other"], 8)):
        with serving_here(tmp_path, options=options) as server:
            configs = [http(server.http_port, "GET", f"/v2/models/{name}/config").json for name in ("custom", "plain")]
            assert [each["max_batch_size"] for each in configs] == [size, 8]
    (tmp_path / "custom" / "configs" / "h100.pbtxt").write_text("odd: 1")
    with serving_here(
        tmp_path, options=["--model-config-name=h100"], errors=["1 problem in the configuration of model 'custom'"]
    ) as server:
        assert "custom/configs/h100.pbtxt:1:1: unknown field 'odd'" in server.log


def test_what_the_metrics_page_has(tmp_path: Path) -> None:
    write_identity(tmp_path, "m", extra="response_cache { enable: true }")
    pages = []
    for options in ([], ["--metrics-config=counter_latencies=false", "--metrics-config=histogram_latencies=false"]):
        with serving_here(tmp_path, options=["--cache-config=local,size=10000", *options]) as server:
            ask(server, "m")
            page = http(server.metrics_port, "GET", "/metrics").body.decode()
            pages.append({line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")})
    assert sorted(pages[0] - pages[1]) == [
        "modserve_compute_duration_seconds",
        "modserve_queue_duration_seconds",
        "modserve_request_duration_seconds",
        "nv_cache_hit_duration_per_model",
        "nv_cache_miss_duration_per_model",
        "nv_inference_compute_infer_duration_us",
        "nv_inference_compute_input_duration_us",
        "nv_inference_compute_output_duration_us",
        "nv_inference_queue_duration_us",
        "nv_inference_request_duration_us",
    ]
    assert pages[1] <= pages[0]


COPIED = [
    "--backend-directory=/opt/tritonserver/backends",
    "--pinned-memory-pool-byte-size=268435456",
    "--cuda-memory-pool-byte-size=0:67108864",
    "--min-supported-compute-capability=6.0",
    "--buffer-manager-thread-count=4",
    "--host-policy=gpu_0,numa-node=0",
    "--model-load-gpu-limit=0:0.9",
    "--allow-gpu-metrics=false",
    "--metrics-interval-ms=1000",
    "--metrics-config=summary_latencies=true",
    "--rate-limit-resource=R:1",
    "--http-thread-count=16",
    "--grpc-infer-allocation-pool-size=8",
    "--trace-config=rate=100",
    "--trace-config=mode=triton",
]
SAID = {
    "backend-directory",
    "pinned-memory-pool-byte-size",
    "cuda-memory-pool-byte-size",
    "min-supported-compute-capability",
    "buffer-manager-thread-count",
    "host-policy",
    "model-load-gpu-limit",
    "rate-limit-resource",
    "http-thread-count",
    "grpc-infer-allocation-pool-size",
}


def test_a_copied_command_line_starts(tmp_path: Path) -> None:
    write_identity(tmp_path, "m")
    with serving_here(tmp_path, options=COPIED) as server:
        ask(server, "m")
        said = [line for line in server.log.splitlines() if " has no effect " in line]
    assert len(said) == len(SAID)
    for name in SAID:
        assert any(f"--{name}" in line for line in said), name


def test_what_must_not_be_ignored_is_refused(tmp_path: Path) -> None:
    write_identity(tmp_path, "m")
    for option, text in (
        ("--trace-config=mode=jaeger", 'invalid value for trace mode option: jaeger. Available options are "triton"'),
        ("--cache-config=redis,host=a", "cache 'redis' needs its address"),
        ("--rate-limit=sometimes", "Input should be 'off' or 'execution_count', got: sometimes"),
        ("--http-adress=127.0.0.1", "unknown option '--http-adress'; did you mean '--http-address'?"),
    ):
        with started_here(tmp_path, options=[option]) as server:
            server.wait(2)
            assert text in server.log
