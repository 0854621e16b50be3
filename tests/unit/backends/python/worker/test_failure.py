"""Where a model failed: what clients are told, and what operators are."""

import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_files import Handle, refused, requests
from modserve.backends.python.worker import model
from modserve.backends.python.worker.errors import ModelError
from modserve.backends.python.worker.failure import OwnFiles
from modserve.backends.python.worker.request import InferenceRequest
from modserve.backends.python.worker.tensor import Tensor

MODEL = """
    import triton_python_backend_utils as pb_utils
    import helper
    from env import deep

    class TritonPythonModel:
        def execute(self, requests):
            return helper.run(deep.call, self.fail)
        def fail(self):
            raise ValueError("no")
"""
"""It calls a helper in the model's folder, that a package which is installed in the version's, and that its `fail`."""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text), encoding="utf-8")


@pytest.fixture
def version(tmp_path: Path) -> Path:
    folder = tmp_path / "m" / "1"
    write(folder / "model.py", MODEL)
    write(tmp_path / "m" / "helper.py", "def run(how, what):\n    return how(what)\n")
    installed = folder / "env" / "site-packages" / "deep.py"
    write(installed, "def call(what):\n    return what()\n")
    write(
        folder / "env" / "__init__.py",
        f"import importlib.util\nspec = importlib.util.spec_from_file_location('deep', {str(installed)!r})\n"
        "deep = importlib.util.module_from_spec(spec)\nspec.loader.exec_module(deep)\n",
    )
    return folder


def failed(version: Path, *, full_errors: bool = False) -> ModelError:
    made = model.load(str(version / "model.py"), "m", None, isolated=True, full_errors=full_errors)
    made.initialize({"model_name": "m"})
    error = refused(lambda: made.execute(requests()))
    made.finalize()
    return error


def test_clients_see_the_models_own_files_by_their_names_there(version: Path) -> None:
    assert failed(version).message == (
        "Failed to process the request(s) for model 'm', message: ValueError: no\n\nAt:\n"
        "  model.py(10): fail\n  helper.py(2): run\n  model.py(8): execute\n"
    )


def test_the_log_has_every_line_of_the_models_code_and_of_libraries(version: Path) -> None:
    traceback = failed(version).traceback
    files = [line.split('"')[1] for line in traceback.splitlines() if line.startswith('  File "')]
    model_file, helper = str(version / "model.py"), str(version.parent / "helper.py")
    assert files == [model_file, helper, str(version / "env" / "site-packages" / "deep.py"), model_file]
    assert traceback.endswith("ValueError: no\n")


def test_full_errors_are_tritons(version: Path) -> None:
    assert failed(version, full_errors=True).message == (
        "Failed to process the request(s) for model 'm', message: ValueError: no\n\nAt:\n"
        f"  {version}/model.py(10): fail\n  {version}/env/site-packages/deep.py(2): call\n"
        f"  {version.parent}/helper.py(2): run\n  {version}/model.py(8): execute\n"
    )


@pytest.mark.parametrize("full", [False, True])
def test_a_load_error_has_every_place_with_its_path(version: Path, full: bool) -> None:
    write(version / "model.py", MODEL.replace("def execute(self, requests)", "def initialize(self, args)"))
    made = model.load(str(version / "model.py"), "m", None, isolated=True, full_errors=full)
    message = refused(lambda: made.initialize({"model_name": "m"})).message
    assert message.startswith(f"ValueError: no\n\nAt:\n  {version}/model.py(10): fail\n  {version}/env/site-packages/")
    assert message.endswith(f"\n  {version}/model.py(8): initialize\n")


def test_a_failure_in_no_line_of_the_model_names_its_method(version: Path) -> None:
    write(version / "model.py", "class TritonPythonModel:\n    def execute(self, requests):\n        return 3\n")
    assert failed(version).message.endswith("found type '<class 'int'>'.\n\nAt:\n  model.py(2): execute\n")
    assert failed(version, full_errors=True).message.endswith(f"\n\nAt:\n  {version}/model.py(2): execute\n")


def test_a_coroutine_of_a_plain_function(version: Path) -> None:
    write(
        version / "model.py",
        """
        import asyncio
        class TritonPythonModel:
            def execute(self, requests):
                return self.later()
            async def later(self):
                raise ValueError("no")
        """,
    )
    assert failed(version).message.endswith("ValueError: no\n\nAt:\n  model.py(7): later\n")


DECORATED = """
    import modserve

    @modserve.model
    def careful(text: str) -> {returns}:
        return {value}
"""


@pytest.mark.parametrize(
    ("returns", "value", "text"),
    [
        ("str", "{}[text]", "KeyError: 'x'\n\nAt:\n  {root}model.py(6): careful\n"),
        ("int", "'three'", "model 'careful' ({root}model.py, line 4): "),
    ],
    ids=["raises", "wrong output"],
)
def test_a_decorated_function(tmp_path: Path, returns: str, value: str, text: str) -> None:
    file = tmp_path / "1" / "model.py"
    write(file, DECORATED.format(returns=returns, value=value))
    for full, root in ((False, ""), (True, f"{tmp_path}/1/")):
        made = model.load(str(file), "m", None, isolated=True, full_errors=full)
        made._instance = instance = made._class()
        instance._host, instance._function = Log(), instance.definition.target
        (response,) = made._instance.execute(text_requests("x"))
        assert response.error().message().startswith(text.format(root=root))


class Log:
    def log(self, level: str, message: str) -> None:
        """Nobody reads it."""


def text_requests(value: str) -> list[Any]:
    tensor = Tensor("text", np.array([value], object))
    return [InferenceRequest.make_unchecked(Handle(), [tensor], ("output",))]


def test_a_package_is_known_from_where_it_is_imported_from() -> None:
    own = OwnFiles([])
    own.add_module("/project/package/models.py", "package.models")
    assert own.name("/project/package/models.py") == "package/models.py"
    assert own.name("/project/util.py") == "util.py"
    assert own.name("/project/.venv/lib/python3.12/site-packages/numpy/core.py") is None
    assert own.name("/projects/util.py") is None


def test_of_an_installed_package_only_its_own_directory_is_known() -> None:
    own = OwnFiles([])
    own.add_module("/venv/site-packages/package/models.py", "package.models")
    assert own.name("/venv/site-packages/package/models.py") == "models.py"
    assert own.name("/venv/site-packages/numpy/core.py") is None


def test_the_standard_library_is_never_the_models() -> None:
    own = OwnFiles([sys.prefix, os.path.dirname(os.__file__)])
    assert own.name(os.__file__) is None


def test_an_object_without_a_file_adds_nothing() -> None:
    own = OwnFiles(["/m/1"])
    own.add_module("", "")
    assert own.name(os.path.abspath("a.py")) is None
