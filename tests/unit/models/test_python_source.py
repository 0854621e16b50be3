"""Which Python files define a model; none of them is run to see it."""

from pathlib import Path

import pytest

from modserve.commands.init.templates import KINDS
from modserve.core.errors import ModserveError
from modserve.models.diagnosis.python_source import why_no_model
from modserve.models.loading.one_file import model_file

EXAMPLES = Path(__file__).parents[3] / "examples"
MODELS = {
    "class": "import numpy\nclass TritonPythonModel:\n    def execute(self, requests): ...",
    "imported class": "from base import Model as TritonPythonModel",
    "class by assignment": "class Model: ...\nTritonPythonModel = Model",
    "class in one of two branches": "try:\n    import torch\nexcept ImportError:\n    class TritonPythonModel: ...",
    "decorated function": "import modserve\n@modserve.model\ndef double(x: int) -> int: return 2 * x",
    "decorator with options": "import modserve\n@modserve.model(max_batch_size=8)\nasync def f(x: int) -> int: ...",
    "decorated class": "import modserve\n@modserve.model\nclass Double:\n    def predict(self, x: int) -> int: ...",
    "other names": "import modserve as ms\nfrom modserve import model as served\n@served\ndef f(x: int) -> int: ...",
    "second decorator": "import modserve as ms\n@trace\n@ms.model\ndef f(x: int) -> int: ...",
    "decorator as a function": "import modserve\nmodel = modserve.model(max_batch_size=4)(print)",
    "encoding": "# coding: latin-1\nname = 'é'\nclass TritonPythonModel: ...",
}
OTHERS = {
    "training": "from fastai.vision.all import *\nmodel = Model()\nmodel.fit()",
    "someone else's decorator": "from library import model\n@model\ndef f(x: int) -> int: ...",
    "attribute of something else": "import modserve, wandb\n@wandb.model\ndef f(x: int) -> int: ...",
    "inside a function": "import modserve\ndef make():\n    @modserve.model\n    def f(x: int) -> int: ...",
    "only its name": "# class TritonPythonModel\nname = 'TritonPythonModel'",
    "nothing": "",
}


def written(folder: Path, text: str) -> Path:
    """The file does harm if anything runs it."""
    file = folder / "train.py"
    file.write_text(f"{text}\nraise SystemExit('it was run')\n", "latin-1" if "latin-1" in text else "utf-8")
    return file


@pytest.mark.parametrize("text", MODELS.values(), ids=list(MODELS))
def test_files_that_define_a_model(tmp_path: Path, text: str) -> None:
    file = written(tmp_path, text)
    assert why_no_model(file) == ""
    assert model_file(file, []).backend == "python"


@pytest.mark.parametrize("text", OTHERS.values(), ids=list(OTHERS))
def test_other_files(tmp_path: Path, text: str) -> None:
    file = written(tmp_path, text)
    expected = "expected a class TritonPythonModel, or a function or class decorated with modserve.model"
    assert why_no_model(file).startswith(f"defines no model, and is not run: {expected}")
    with pytest.raises(ModserveError, match=r"^'\S+/train.py' defines no model, and is not run: expected a class"):
        model_file(file, [])


def test_a_function_that_could_be_one(tmp_path: Path) -> None:
    file = written(tmp_path, "def prepare(): ...\ndef predict(x): ...")
    assert why_no_model(file).endswith("; '@modserve.model' in front of 'def predict' would make that function a model")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"def f(:\n", "is not Python: line 1: invalid syntax"),
        (b"a = 1\nb = (\n", "is not Python: line 2: '(' was never closed"),
        (b"a = '\xff'\n", "is not Python: "),
        (b"\0", "is not Python: "),
    ],
)
def test_what_is_not_python(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "model.py").write_bytes(content)
    assert why_no_model(tmp_path / "model.py").startswith(why)


@pytest.mark.parametrize("kind", ["python", "function", "ensemble"])
def test_what_init_writes(tmp_path: Path, kind: str) -> None:
    for path, text in KINDS[kind]("made").items():
        if path.suffix == ".py":
            (tmp_path / "model.py").write_text(text)
            assert why_no_model(tmp_path / "model.py") == ""


def test_the_examples() -> None:
    files = [*EXAMPLES.rglob("1/model.py"), EXAMPLES / "function" / "places.py"]
    assert len(files) > 3
    assert [file for file in files if why_no_model(file)] == []
