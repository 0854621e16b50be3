"""What a server does not import before one of its models needs it, seen in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, sys
import numpy as np
from modserve import InferenceServer, ModserveError, Settings
from modserve.testing import PuppetBackend

class Doubling:
    max_in_flight = 1
    def execute(self, inputs, outputs):
        return {"OUTPUT0": inputs["INPUT0"] * 2}
    def close(self):
        pass

class Backend(PuppetBackend):
    def open(self, source):
        model = super().open(source)
        model.instance = lambda spec: Doubling()
        return model

async def main():
    settings = Settings(model_repository=[sys.argv[1]], exit_on_error=False)
    async with InferenceServer(settings, backends={"puppet": Backend()}) as server:
        response = await server.infer("good", {"INPUT0": np.ones((1, 4), np.int32)})
        assert response.outputs["OUTPUT0"].array.tolist() == [[2, 2, 2, 2]]
        print("\\n".join(name for name in sys.modules if name.startswith("modserve.")))

asyncio.run(main())
"""

CONFIG = """backend: "puppet"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 4 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 4 ] } ]
dynamic_batching { max_queue_delay_microseconds: 100 }
"""
ADAPTIVE = CONFIG + 'parameters { key: "scheduling.grow_batches" value { string_value: "measured" } }\n'


def imported(root: Path, **models: str) -> set[str]:
    """The modules of a server with these models, by the configuration of each, after an inference."""
    for name, text in models.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(text)
    command = [sys.executable, "-c", PROGRAM, str(root)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


def of(package: str, modules: set[str]) -> set[str]:
    return {name for name in modules if f"{name}.".startswith(f"modserve.{package}.")}


def test_a_server_whose_models_load_and_do_not_adapt_imports_neither(tmp_path: Path) -> None:
    modules = imported(tmp_path, good=CONFIG)
    assert of("scheduling", modules)
    assert of("scheduling.adaptive", modules) == set()
    assert of("models.diagnosis", modules) == set()


@pytest.mark.parametrize(
    ("package", "models"),
    [
        ("scheduling.adaptive", {"good": ADAPTIVE}),
        ("models.diagnosis", {"good": CONFIG, "bad": CONFIG.replace("puppet", "nosuch")}),
    ],
    ids=["adaptive", "diagnosis"],
)
def test_a_server_imports_what_one_of_its_models_needs(package: str, models: dict[str, str], tmp_path: Path) -> None:
    assert of(package, imported(tmp_path, **models))
