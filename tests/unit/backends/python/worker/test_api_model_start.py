"""A model.py that is loaded, completes its configuration and is initialized, and what is said where that fails."""

import json
import re
from pathlib import Path

import pytest

from model_files import ECHO, Make, loader, refused, requests
from modserve.backends.python.worker import model


@pytest.fixture
def loaded(tmp_path: Path) -> Make:
    return loader(tmp_path)


def test_completion_of_the_configuration(loaded: Make, tmp_path: Path) -> None:
    made = loaded(
        ECHO
        + """
@staticmethod
def auto_complete_config(config):
    if config.as_dict()["max_batch_size"] == 9:
        return {}
    config.set_max_batch_size(4)
    return config
""",
        initialize=False,
    )
    completed = made.auto_complete_config('{"name": "m", "max_batch_size": 0}')
    assert completed is not None
    assert json.loads(completed) == {"name": "m", "max_batch_size": 4}
    failed = refused(lambda: made.auto_complete_config('{"name": "m", "max_batch_size": 8}'))
    assert re.match(
        r"ValueError: configuration specified max_batch_size 8.*At:\n  .*model.py\(\d+\)", failed.message, re.S
    )
    failed = refused(lambda: made.auto_complete_config('{"name": "m", "max_batch_size": 9}'))
    assert failed.message.startswith(
        "auto_complete_config function in model 'm' must return a valid pb.ModelConfig object, not dict ("
    )
    assert f"{tmp_path}/m/1/model.py(" in failed.message
    assert loaded(ECHO, initialize=False).auto_complete_config("{}") is None


@pytest.mark.parametrize(
    ("whole", "message"),
    [
        ("x = 1\ndef f(:\n", "SyntaxError: invalid syntax\n\nAt:\n  PATH(2): def f(:\n"),
        (
            "import nothing_of_that_name\n",
            "ModuleNotFoundError: No module named 'nothing_of_that_name'\n\nAt:\n  PATH(1): <module>\n",
        ),
        ("raise SystemExit(2)", "SystemExit: 2\n\nAt:\n  PATH(1): <module>\n"),
        ("x = 1", "PATH has no class TritonPythonModel"),
        ("TritonPythonModel = 1", "PATH: TritonPythonModel is not a class but int"),
    ],
)
def test_a_file_that_is_no_model(loaded: Make, tmp_path: Path, whole: str, message: str) -> None:
    assert refused(lambda: loaded(whole=whole)).message == message.replace(
        "PATH", str(tmp_path / "m" / "1" / "model.py")
    )


def test_a_missing_file(tmp_path: Path) -> None:
    failed = refused(lambda: model.load(str(tmp_path / "model.py"), "m", None, isolated=True))
    assert failed.message.startswith("FileNotFoundError: ")
    assert str(tmp_path / "model.py") in failed.message


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ("x = 1", "Python model PATH does not implement `execute` method."),
        ("execute = 3", "PATH: `execute` of TritonPythonModel is not a method but int"),
        ("def execute(self): pass", "`execute` must take the list of requests.* it is `execute()` (PATH(6))"),
        ("def execute(self, a, b): pass", "`execute` must take the list of requests.*`execute(a, b)` (PATH(6))"),
        ("def __init__(self, x): pass\ndef execute(self, r): pass", "TypeError: .*__init__() missing 1 required"),
        ("def initialize(self, args):\n    sys.exit(1)", "SystemExit: 1\n\nAt:\n  PATH(7): initialize\n"),
        ("def initialize(self): pass", "TypeError: .*initialize() takes 1 positional argument"),
    ],
)
def test_a_class_that_is_no_model(loaded: Make, tmp_path: Path, methods: str, message: str) -> None:
    failed = refused(lambda: loaded(methods))
    text = message.replace("PATH", str(tmp_path / "m" / "1" / "model.py"))
    assert all(part in failed.message for part in text.split(".*"))


def test_execute_may_be_any_callable(loaded: Make) -> None:
    made = loaded("def initialize(self, args):\n    self.execute = lambda r, *more: [pb_utils.InferenceResponse([])]")
    assert len(made.execute(requests())) == 1
    made = loaded(
        """
        class Coroutine:
            async def __call__(self, requests):
                return []
        execute = Coroutine()
        """
    )
    assert made.is_async
