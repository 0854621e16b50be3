"""Responses kept in a real Redis: shared, and of no harm when it is away, frozen, full, or full of other things."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from authority import Authority
from redis_process import RedisProcess, redis_server
from repositories import copy_example, write_identity, write_onnx_identity
from server_here import serving_here
from server_process import Server, eventually, serving
from wire import Ask, Input, binary_outputs, grpc_infer, http, http_infer, metric, raw_outputs, statistics

from modserve.core.pip_command import pip_install

ENABLED = "\nresponse_cache { enable: true }\n"
BACK = r"redis://\S+ is back"


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    with redis_server(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture(autouse=True)
def empty(redis: RedisProcess) -> None:
    redis.client.flushall()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("cached")
    write_identity(directory, "kept", extra=ENABLED)
    write_identity(directory, "texts", "BYTES", extra=ENABLED)
    return directory


@pytest.fixture
def server(repository: Path, redis: RedisProcess) -> Iterator[Server]:
    options = [redis.option(), "--model-control-mode=explicit", "--load-model=*"]
    with serving_here(repository, options=options) as running:
        yield running


def numbers(first: int, count: int = 4, id: str = "") -> Ask:
    data = np.arange(first, first + count, dtype=np.int32).tobytes()
    return Ask((Input("INPUT0", "INT32", (1, count), data),), model="kept", id=id)


def ask(server: Server, asked: Ask) -> None:
    answer = http_infer(server.http_port, asked)
    assert (answer.status, binary_outputs(answer)) == (200, {"OUTPUT0": asked.inputs[0].raw})


def counts(server: Server, model: str = "kept") -> tuple[int, int]:
    """Hits and misses."""
    stats = statistics(server, model)["inference_stats"]
    return stats["cache_hit"]["count"], stats["cache_miss"]["count"]


def kept(redis: RedisProcess, count: int) -> list[str]:
    return eventually(lambda: redis.keys if len(redis.keys) == count else [])


def test_two_servers_share_responses(repository: Path, server: Server, redis: RedisProcess) -> None:
    ask(server, numbers(1))
    (name,) = kept(redis, 1)
    assert name.startswith("modserve:1:kept:1:")
    assert 3590_000 < int(redis.client.pttl(name)) <= 3600_000
    with serving_here(repository, options=[redis.option()]) as other:
        ask(other, numbers(1, id="a"))
        answer = grpc_infer(other.grpc_port, numbers(1, id="b"))
        assert (answer.id, raw_outputs(answer)) == ("b", {"OUTPUT0": numbers(1).inputs[0].raw})
        assert counts(other) == (2, 0)
        assert statistics(other, "kept")["execution_count"] == 0
        assert metric(other, "nv_cache_num_hits_per_model", model="kept") == 2
        assert metric(other, "nv_cache_hit_duration_per_model", model="kept") > 0
    assert len(redis.keys) == 1  # a server that ends leaves them


def test_texts_and_large_responses(server: Server, redis: RedisProcess) -> None:
    raw = b"".join(len(each).to_bytes(4, "little") + each for each in (b"", b"\xff\0", b"x" * 100_000))
    texts = Ask((Input("INPUT0", "BYTES", (1, 3), raw),), model="texts")
    for number in range(2):
        for asked in (texts, numbers(5, 500_000)):
            ask(server, asked)
        kept(redis, 2)
        assert counts(server, "texts") == (number, 1)
    assert counts(server) == (1, 1)


def test_workers_share_responses(repository: Path, redis: RedisProcess) -> None:
    with serving(repository, options=[redis.option(), "--workers=2"]) as server:
        ask(server, numbers(1))
        kept(redis, 1)
        for _ in range(20):  # each a connection of its own
            ask(server, numbers(1))
        assert counts(server) == (20, 1)


def test_a_model_with_other_content_gives_no_old_responses(tmp_path: Path, redis: RedisProcess) -> None:
    write_onnx_identity(tmp_path, "kept", "INT32")
    config = tmp_path / "kept" / "config.pbtxt"
    config.write_text((config.read_text() if config.exists() else "") + ENABLED)
    options = [redis.option(), "--model-control-mode=explicit", "--load-model=*"]
    load = "/v2/repository/models/kept/load"
    with serving_here(tmp_path, options=options) as server:
        ask(server, numbers(1))
        (before,) = kept(redis, 1)
        with config.open("a") as file:
            file.write('parameters { key: "note" value { string_value: "changed" } }\n')
        assert http(server.http_port, "POST", load).status == 200
        ask(server, numbers(1))
        (after,) = eventually(lambda: [key for key in redis.keys if key != before])
        eventually(lambda: redis.keys == [after])
        assert counts(server) == (0, 1)
        assert http(server.http_port, "POST", load.replace("/load", "/unload")).status == 200
        eventually(lambda: not redis.keys)


def test_an_ensemble_is_shared_until_one_of_its_models_changes(tmp_path: Path, redis: RedisProcess) -> None:
    photo = Ask((Input("photo", "UINT8", (1, 12, 9), bytes(range(108))),), model="digits_pipeline")
    for example in ("digits", "digits_resize"):
        copy_example(tmp_path, example, example)
    copy_example(tmp_path, "digits_pipeline", "digits_pipeline", ENABLED)
    responses = []
    for hits in ((0, 1), (1, 0), (0, 1)):
        with serving_here(tmp_path, options=[redis.option()]) as server:
            responses.append(binary_outputs(http_infer(server.http_port, photo)))
            assert counts(server, "digits_pipeline") == hits
            eventually(lambda: redis.keys)
        if hits == (1, 0):
            (tmp_path / "digits" / "note.txt").write_text("another file beside the model")
    assert responses[0].keys() == {"label", "probabilities"}
    assert responses == responses[:1] * 3


def test_foreign_values_are_misses(server: Server, redis: RedisProcess) -> None:
    ask(server, numbers(1))
    (name,) = kept(redis, 1)
    whole = redis.client.get(name)
    assert isinstance(whole, bytes)
    for value in (b"", b"foreign", whole[:-1], whole[:-1] + b"x"):
        redis.client.set(name, value)
        ask(server, numbers(1))
        eventually(lambda: redis.client.get(name) == whole)
    redis.client.delete(name)
    redis.client.hset(name, "a", "b")  # a value of another kind
    ask(server, numbers(1))
    assert counts(server) == (0, 6)


def test_it_goes_away_and_comes_back(repository: Path, redis: RedisProcess) -> None:
    with serving_here(repository, options=[redis.option()]) as server:
        ask(server, numbers(0))
        kept(redis, 1)
        redis.stop()
        for first in range(50):
            ask(server, numbers(first))
        server.wait_for(r"response cache redis://localhost:\d+/0: .*; requests run without it until it is back")
        assert len([line for line in server.log.splitlines() if "response cache" in line]) == 1
        redis.start()
        server.wait_for(BACK)
        hits, _ = counts(server)
        ask(server, numbers(7))
        kept(redis, 1)
        ask(server, numbers(7))
        assert counts(server)[0] == hits + 1


def test_one_that_is_away_from_the_start(repository: Path, redis: RedisProcess) -> None:
    redis.stop()
    try:
        with serving_here(repository, options=[redis.option()]) as server:
            for first in range(10):
                ask(server, numbers(first))
            assert counts(server) == (0, 10)
    finally:
        redis.start()


def test_one_that_says_nothing(repository: Path, redis: RedisProcess) -> None:
    quick = redis.option().replace("socket_timeout=2000", "socket_timeout=50")
    with serving_here(repository, options=[quick, "--log-verbose=1"]) as server:
        redis.freeze(True)
        try:
            for first in range(30):
                ask(server, numbers(first))
            server.wait_for("no reply in 50 ms; requests run without it until it is back")
            assert server.log.count("no reply in 50 ms") == 3, "so many have waited"
        finally:
            redis.freeze(False)
        server.wait_for(BACK)


def test_one_that_is_full(repository: Path, tmp_path: Path) -> None:
    with (
        redis_server(tmp_path, ["--maxmemory", "3mb", "--maxmemory-policy", "noeviction"]) as small,
        serving_here(repository, options=[small.option()]) as server,
    ):
        ask(server, numbers(1))
        kept(small, 1)
        for first in range(2, 40):
            ask(server, numbers(first, 100_000))
        server.wait_for("OutOfMemoryError: .*; no responses are kept until it is back")
        hits, _ = counts(server)
        ask(server, numbers(1))
        assert counts(server)[0] == hits + 1


def test_a_wrong_password_and_the_right_one(repository: Path, tmp_path: Path) -> None:
    with redis_server(tmp_path, password="secret") as closed:
        with serving_here(repository, options=[closed.option("password=wrong")]) as server:
            for first in range(4):
                ask(server, numbers(first))
            server.wait_for("response cache redis://.*: AuthenticationError: .*; requests run without it")
            assert "wrong," not in server.log
        environment = {"TRITONCACHE_REDIS_PASSWORD": "secret"}
        with serving_here(repository, options=[closed.option()], environment=environment) as server:
            ask(server, numbers(1))
            kept(closed, 1)
            assert "secret" not in server.log


def test_over_tls(repository: Path, tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "ca", "ours"), Authority(tmp_path / "other", "theirs")
    own, client = authority.issue("redis"), authority.issue("modserve")
    options = ["--tls-cert-file", str(own.certificate), "--tls-key-file", str(own.key)]
    options += ["--tls-ca-cert-file", str(authority.certificate), "--tls-auth-clients", "optional"]
    with redis_server(tmp_path, options, tls=True) as private:
        trusted = private.option("tls_enabled=true", f"cacert={authority.certificate}")
        for option in (trusted, f"{trusted},cert={client.certificate},key={client.key},sni=localhost"):
            private.client.flushall()
            with serving_here(repository, options=[option]) as server:
                ask(server, numbers(1))
                kept(private, 1)
                ask(server, numbers(1))
                assert counts(server) == (1, 1)
        for option in (private.option("tls_enabled=true", f"cacert={other.certificate}"), f"{trusted},sni=elsewhere"):
            with serving_here(repository, options=[option]) as server:
                for first in range(4):
                    ask(server, numbers(first))
                server.wait_for("certificate verify failed.*; requests run without it")
                assert counts(server) == (0, 4)


def test_many_at_once(server: Server) -> None:
    """All correct, whoever computes what."""
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: ask(server, numbers(number % 5)), range(400)))
    hits, misses = counts(server)
    assert (hits + misses, misses < 50) == (400, True)


def test_no_library(repository: Path, redis: RedisProcess, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as util\n_find = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name == 'redis' else _find(name, *more)\n"
    )
    command = [sys.executable, "-m", "modserve", "serve", f"--model-repository={repository}", redis.option()]
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert pip_install("redis") in done.stderr
    assert "Traceback" not in done.stderr
