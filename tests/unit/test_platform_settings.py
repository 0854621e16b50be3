"""What SageMaker and Vertex AI tell a container by its environment, and what options make of it."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from modserve import Settings
from modserve.settings import OptionError, from_command_line

VERTEX = {
    "AIP_HTTP_PORT": "8123",
    "AIP_HEALTH_ROUTE": "/v1/endpoints/7/deployedModels/9",
    "AIP_PREDICT_ROUTE": "/v1/endpoints/7/deployedModels/9:predict",
    "AIP_STORAGE_URI": "gs://bucket/models",
}


def set_all(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_without_a_platform_the_variables_mean_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, {**VERTEX, "SAGEMAKER_BIND_TO_PORT": "1", "SAGEMAKER_MULTI_MODEL": "true"})
    settings = Settings(model_repository="models")
    assert (settings.http.port, settings.http.routes, settings.grpc.allow) == (8000, None, True)
    assert (settings.model_control_mode, settings.allow_metrics) == ("none", True)


def test_an_endpoint_of_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(platform="sagemaker")
    routes = settings.http.routes
    assert routes is not None
    assert (settings.http.port, settings.repositories) == (8080, (Path("/opt/ml/model"),))
    assert (settings.grpc.allow, settings.allow_metrics, settings.model_control_mode) == (False, False, "none")
    assert (routes.model, routes.call, routes.registry, routes.instances) == ("", "infer", "", False)
    set_all(
        monkeypatch,
        {
            "SAGEMAKER_BIND_TO_PORT": "8901",
            "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "m",
            "SAGEMAKER_TRITON_INFERENCE_TYPE": "generate_stream",
        },
    )
    settings = Settings(platform="sagemaker")
    assert settings.http.routes is not None
    assert (settings.http.port, settings.http.routes.model, settings.http.routes.call) == (8901, "m", "generate_stream")


def test_an_endpoint_of_many_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SAGEMAKER_MULTI_MODEL", "true")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    settings = Settings(platform="sagemaker")
    registry = tmp_path / "modserve-sagemaker"
    assert (registry.is_dir(), registry.stat().st_mode & 0o777) == (True, 0o700)
    assert settings.http.routes is not None
    assert (settings.repositories, settings.http.routes.registry) == ((registry,), str(registry))
    assert (settings.model_control_mode, settings.allow_outside_symlinks) == ("explicit", True)
    monkeypatch.setattr("os.getuid", lambda: 12345)
    with pytest.raises(ValidationError, match="belongs to another user"):
        Settings(platform="sagemaker")


def test_vertex(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, VERTEX)
    settings = from_command_line(["--platform=vertex", "--vertex-ai-default-model=m"], {}).settings
    routes = settings.http.routes
    assert routes is not None
    assert (settings.http.port, [str(place) for place in settings.repositories]) == (8123, ["gs://bucket/models"])
    assert (routes.health, routes.predict) == (VERTEX["AIP_HEALTH_ROUTE"], VERTEX["AIP_PREDICT_ROUTE"])
    assert (routes.model, routes.instances, settings.grpc.allow, settings.allow_metrics) == ("m", True, False, True)


@pytest.mark.parametrize("platform", ["sagemaker", "vertex"])
def test_a_port_that_is_given_is_opened(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    set_all(monkeypatch, VERTEX)
    words = [f"--platform={platform}", "--grpc-port=9", "--metrics-port=10"]
    settings = from_command_line(words, {}).settings
    assert (settings.grpc.allow, settings.allow_metrics) == (True, True)


def test_options_come_before_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, VERTEX)
    words = ["--http-port=9", "--model-repository=mine", "--allow-grpc=true"]
    settings = from_command_line(words, {"MODSERVE_PLATFORM": "vertex"}).settings
    assert (settings.http.port, settings.repositories, settings.grpc.allow) == (9, (Path("mine"),), True)
    monkeypatch.delenv("AIP_STORAGE_URI")
    with pytest.raises(OptionError, match="no model repository given"):
        from_command_line(["--platform=vertex"], {})


@pytest.mark.parametrize(
    ("platform", "variable", "value", "text"),
    [
        ("vertex", "AIP_PREDICT_ROUTE", "", "environment variable AIP_PREDICT_ROUTE is not set, as Vertex AI sets it"),
        ("vertex", "AIP_HEALTH_ROUTE", "ready", "environment variable AIP_HEALTH_ROUTE is no path: ready"),
        ("vertex", "AIP_HTTP_PORT", "65536", "environment variable AIP_HTTP_PORT is no port: 65536"),
        ("sagemaker", "SAGEMAKER_BIND_TO_PORT", "x", "environment variable SAGEMAKER_BIND_TO_PORT is no port: x"),
        (
            "sagemaker",
            "SAGEMAKER_TRITON_INFERENCE_TYPE",
            "predict",
            "expected one of: infer, generate, generate_stream",
        ),
        ("azure", "A", "", "Input should be 'none', 'sagemaker' or 'vertex', got: azure"),
    ],
)
def test_what_is_wrong_is_said(
    monkeypatch: pytest.MonkeyPatch, platform: str, variable: str, value: str, text: str
) -> None:
    set_all(monkeypatch, VERTEX | {variable: value})
    with pytest.raises(OptionError) as caught:
        from_command_line([f"--platform={platform}", "--model-repository=m"], {})
    assert text in str(caught.value)
