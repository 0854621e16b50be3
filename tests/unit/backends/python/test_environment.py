"""Which interpreter and environment a worker gets. Other interpreters run in tests/e2e/test_python_environments.py."""

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from modserve.backends.api import ModelSource
from modserve.backends.python import environment, environment_cache, interpreter, missing_modules, requirements
from modserve.backends.python.options import BackendOptions, ModelOptions
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import Code, ModserveError

MODEL = ModelConfig(name="m", backend="python")


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    for lock in environment_cache._in_use.values():
        os.close(lock)
    environment_cache._in_use.clear()


@pytest.fixture
def source(tmp_path: Path) -> ModelSource:
    directory = tmp_path / "models" / "m"
    (directory / "1").mkdir(parents=True)
    return ModelSource(MODEL, 1, directory / "1" / "model.py", directory, cpu_threads=3, cpu_instances=2)


@pytest.fixture
def inspected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The interpreters that were run, which all are good ones."""
    calls: list[str] = []

    def inspect(python: str, variables: Mapping[str, str], which_one: str) -> interpreter.Interpreter:
        calls.append(f"{which_one}: {python}")
        return interpreter.Interpreter(python, "PyPy 3.9.16", variables)

    monkeypatch.setattr(interpreter, "inspect", inspect)
    return calls


def venv(directory: Path, name: str = "python") -> Path:
    (directory / "bin").mkdir(parents=True)
    python = directory / "bin" / name
    python.touch(0o755)
    return directory


def refusal(source: ModelSource, path: str) -> str:
    with pytest.raises(ModserveError) as caught:
        environment.prepare(source, ModelOptions(environment_path=path), BackendOptions(), {})
    return caught.value.reason


def test_the_servers_interpreter(source: ModelSource, inspected: list[str]) -> None:
    ready = environment.prepare(source, ModelOptions(), BackendOptions(), {"A": "b"})
    version = f"{platform.python_implementation()} {platform.python_version()}"
    variables = {"A": "b", "OMP_NUM_THREADS": "3"}
    assert ready == interpreter.Interpreter(sys.executable, version, variables)
    assert inspected == []


def test_a_model_in_a_thread(source: ModelSource, inspected: list[str], tmp_path: Path) -> None:
    (source.model_directory / "requirements.txt").write_text("x")
    backend = BackendOptions(install_requirements=True, python="/usr/bin/python3")
    ready = environment.prepare(source, ModelOptions("thread"), backend, {"A": "b"})
    assert (ready.python, ready.variables) == (sys.executable, {"A": "b"})


def test_another_default_interpreter(source: ModelSource, inspected: list[str], tmp_path: Path) -> None:
    python = str(venv(tmp_path / "usr") / "bin" / "python")
    ready = environment.prepare(source, ModelOptions(), BackendOptions(python=python), {})
    assert (ready.python, ready.version) == (python, "PyPy 3.9.16")
    assert "VIRTUAL_ENV" not in ready.variables
    assert inspected == [f"the interpreter of --backend-config=python,python={python}: {python}"]


def test_a_default_interpreter_in_an_environment(source: ModelSource, inspected: list[str], tmp_path: Path) -> None:
    directory = venv(tmp_path / "venv")
    (directory / "pyvenv.cfg").touch()
    ready = environment.prepare(source, ModelOptions(), BackendOptions(python=str(directory / "bin" / "python")), {})
    assert ready.variables["VIRTUAL_ENV"] == str(directory)


@pytest.mark.parametrize("text", ["{absolute}", "$$TRITON_MODEL_DIRECTORY/../shared/env", "models/shared/env"])
def test_a_directory(
    source: ModelSource, inspected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    directory = venv(tmp_path / "models" / "shared" / "env", "python3")
    monkeypatch.chdir(tmp_path)
    path = text.format(absolute=directory)
    ready = environment.prepare(source, ModelOptions(environment_path=path), BackendOptions(), {"PATH": "/bin"})
    assert (ready.python, ready.variables["VIRTUAL_ENV"]) == (str(directory / "bin" / "python3"), str(directory))
    assert ready.variables["PATH"] == f"{directory}/bin:/bin"
    assert ready.variables["OMP_NUM_THREADS"] == "3"
    assert inspected == [f"the environment '{path}' of model 'm': {directory / 'bin' / 'python3'}"]


def test_nothing_there(source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal(source, "env.tar.gz") == (
        f"Invalid argument: model 'm': parameter 'EXECUTION_ENV_PATH' is 'env.tar.gz', but there is no "
        f"'{tmp_path}/env.tar.gz'; expected the path of a conda-pack archive or of an environment's directory, in "
        f"which $$TRITON_MODEL_DIRECTORY stands for the model's directory"
    )
    (source.model_directory / "env.tar.gz").touch()
    assert refusal(source, "env.tar.gz").endswith(
        "; paths are relative to the server's working directory: did you mean '$$TRITON_MODEL_DIRECTORY/env.tar.gz'?"
    )


def test_a_directory_without_an_interpreter(source: ModelSource, tmp_path: Path) -> None:
    assert refusal(source, str(tmp_path)) == (
        f"Invalid argument: the environment '{tmp_path}' of model 'm' has no interpreter: expected "
        f"'{tmp_path}/bin/python'"
    )


def test_an_interpreter_in_place_of_its_environment(source: ModelSource, tmp_path: Path) -> None:
    directory = venv(tmp_path / "env")
    assert refusal(source, f"{directory}/bin/python").endswith(
        f"which is a program; expected the directory of the environment, '{directory}'"
    )


def test_requirements_that_nobody_installs(source: ModelSource, inspected: list[str]) -> None:
    (source.model_directory / "requirements.txt").write_text("x")
    assert environment.prepare(source, ModelOptions(), BackendOptions(), {}).python == sys.executable


def test_requirements_of_a_model_with_an_environment(
    source: ModelSource, inspected: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (source.model_directory / "requirements.txt").write_text("x")
    directory = venv(tmp_path / "env")
    backend, model = BackendOptions(install_requirements=True), ModelOptions(environment_path=str(directory))
    with caplog.at_level("INFO"):
        assert environment.prepare(source, model, backend, {}).variables["VIRTUAL_ENV"] == str(directory)
    assert f"requirements.txt' is not installed, because '{directory}' names an environment" in caplog.text


def test_requirements_that_are_installed(
    source: ModelSource, inspected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed: list[tuple[Path, str]] = []

    def install(path: Path, model: str, base: interpreter.Interpreter, place: Path, lock: int) -> None:
        installed.append((path, base.python))
        venv(place)

    monkeypatch.setattr(requirements, "_install", install)
    file = source.model_directory / "1" / "requirements.txt"
    file.write_text("x")
    (source.model_directory / "requirements.txt").write_text("y")
    backend = BackendOptions(install_requirements=True, environment_directory=str(tmp_path / "cache"))
    first = environment.prepare(source, ModelOptions(), backend, {})
    directory = Path(first.variables["VIRTUAL_ENV"])
    assert directory.is_relative_to(tmp_path / "cache")
    assert environment.prepare(source, ModelOptions(), backend, {}) == first
    file.write_text("z")
    assert environment.prepare(source, ModelOptions(), backend, {}) != first
    assert installed == [(file, sys.executable)] * 2
    assert inspected[0].startswith(f"the environment of '{file}' for model 'm': {directory}")


def digest(path: Path, version: str = "CPython 3.11.7") -> str:
    return requirements._digest(path, interpreter.Interpreter("/usr/bin/python3", version, {}))


def test_the_key_of_requirements(tmp_path: Path) -> None:
    path, common = tmp_path / "requirements.txt", tmp_path / "common.txt"
    path.write_text("a==1\n-r common.txt  # more\n--constraint=limits.txt\n-r requirements.txt\n")
    keys = {digest(path), digest(path, "CPython 3.12.1")}
    common.write_text("b==1")
    keys.add(digest(path))
    common.write_text("b==2")
    keys.add(digest(path))
    (tmp_path / "limits.txt").write_text("c<1")
    keys.add(digest(path))
    assert len(keys) == 5
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    for file in tmp_path.glob("*.txt"):
        (copy / file.name).write_bytes(file.read_bytes())
    assert digest(copy / "requirements.txt") in keys


@pytest.mark.parametrize(
    ("file", "model", "backend", "hint"),
    [
        (
            False,
            ModelOptions(),
            BackendOptions(),
            "module 'cv2' is not installed in /py, which the model runs in: install it there ('/py -m pip install …'), "
            "or name an environment that has it with the parameter 'EXECUTION_ENV_PATH'",
        ),
        (
            False,
            ModelOptions("thread"),
            BackendOptions(),
            "module 'cv2' is not installed in /py, which the model runs in: install it there ('/py -m pip install …'), "
            "or remove 'EXECUTION_MODE' and name an environment that has it with the parameter 'EXECUTION_ENV_PATH'",
        ),
        (
            True,
            ModelOptions(),
            BackendOptions(),
            "module 'cv2' is not installed in /py, and '{file}' is not installed: install it with "
            "--backend-config=python,install-requirements=true, or install it there ('/py -m pip install …')",
        ),
        (
            True,
            ModelOptions(),
            BackendOptions(install_requirements=True),
            "module 'cv2' is not installed in /py, where '{file}' is installed; does the file name its package?",
        ),
        (
            True,
            ModelOptions("thread"),
            BackendOptions(install_requirements=True),
            "module 'cv2' is not installed in /py, which the model runs in, since its 'EXECUTION_MODE' is 'thread'; "
            "'{file}' is for models that run in a process of their own",
        ),
        (
            True,
            ModelOptions("inline"),
            BackendOptions(),
            "module 'cv2' is not installed in /py, which the model runs in, since its 'EXECUTION_MODE' is 'inline'; "
            "'{file}' is for models that run in a process of their own",
        ),
        (
            True,
            ModelOptions(environment_path="/env"),
            BackendOptions(install_requirements=True),
            "module 'cv2' is not in the environment '/env' of model 'm'",
        ),
    ],
)
def test_what_to_do_about_a_missing_module(
    source: ModelSource, file: bool, model: ModelOptions, backend: BackendOptions, hint: str
) -> None:
    path = source.model_directory / "requirements.txt"
    if file:
        path.write_text("opencv-python")
    assert missing_modules.hint("cv2", source, model, backend, "/py") == hint.format(file=path)


def test_a_missing_module_of_a_model_of_mlflow(source: ModelSource) -> None:
    source = replace(source, config=replace(source.config, backend="mlflow"))
    hint = missing_modules.hint("mlflow", source, ModelOptions(), BackendOptions(), "/py")
    assert "('/py -m pip install mlflow-skinny pandas')" in hint
    (source.model_directory / "requirements.txt").write_text("mlflow")
    hint = missing_modules.hint("cv2", source, ModelOptions(), BackendOptions(), "/py")
    assert "--backend-config=mlflow,install-requirements=true" in hint


def test_the_hint_follows_the_error(source: ModelSource) -> None:
    text = "ModuleNotFoundError: No module named 'cv2'\n\nAt:\n  model.py(1): <module>\n"
    failed = ModserveError(Code.INTERNAL, text)
    with pytest.raises(ModserveError) as caught, missing_modules.hints(source, ModelOptions(), BackendOptions(), "/py"):
        raise failed
    assert caught.value.code is Code.INTERNAL
    assert caught.value.message.startswith(f"{text}\nmodule 'cv2' is not installed in /py, ")


@pytest.mark.parametrize("text", ["ValueError: x", "ImportError: No module named 'cv2'"])
def test_other_errors_stay(source: ModelSource, text: str) -> None:
    failed = ModserveError(Code.INTERNAL, text)
    with pytest.raises(ModserveError) as caught, missing_modules.hints(source, ModelOptions(), BackendOptions(), "/py"):
        raise failed
    assert caught.value is failed
