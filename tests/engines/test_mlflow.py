"""Models that MLflow has saved run in workers of the Python backend."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from modserve import Code, InferenceServer, ModserveError, Settings
from modserve.backends.mlflow.description import read

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("mlflow", "pandas", "sklearn")), reason="needs mlflow, pandas and sklearn"
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directories that MLflow saves."""
    path = tmp_path_factory.mktemp("saved")
    program = Path(__file__).with_name("mlflow_models.py")
    # It must not look for a git repository around, nor tell its maker anything.
    environment = {**os.environ, "GIT_PYTHON_REFRESH": "quiet", "MLFLOW_DISABLE_TELEMETRY": "true"}
    subprocess.run(
        [sys.executable, str(program), str(path)], check=True, env=environment, cwd=path, capture_output=True
    )
    return path


def install(saved: Path, repository: Path, name: str, config: str = "", below: str = "") -> Path:
    version = repository / name / "1" / below
    shutil.copytree(saved / name, version)
    if config:
        (repository / name / "config.pbtxt").write_text(config)
    return version


async def refusal(repository: Path) -> str:
    async with InferenceServer(Settings(model_repository=(repository,))) as server:
        return "".join(row.reason for row in server.index())


UNSIGNED = """
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP64 dims: [ 2 ] } ]
output [ { name: "y" data_type: TYPE_FP64 dims: [ 2 ] } ]
"""


async def test_models_of_all_kinds(saved: Path, tmp_path: Path) -> None:
    from sklearn.datasets import load_iris

    features, species = load_iris(return_X_y=True)
    install(saved, tmp_path, "iris")
    install(saved, tmp_path, "scaled", 'backend: "mlflow"', below="model")
    install(saved, tmp_path, "greeting")
    install(saved, tmp_path, "unsigned", UNSIGNED)
    install(saved, tmp_path, "dated")
    async with InferenceServer(Settings(model_repository=(tmp_path,))) as server:
        # Columns, and a scikit-learn model
        columns = {name: features[:, place : place + 1] for place, name in enumerate("abcd")}
        classes = (await server.infer("iris", columns)).outputs["output-0"].array
        assert classes.shape == (150, 1)
        assert (classes.ravel() == species).mean() > 0.95

        # A tensor, and parameters of requests
        rows = np.arange(6, dtype=np.float32).reshape(2, 3)
        for factor in (1.0, 2.0):
            parameters = {} if factor == 1.0 else {"factor": factor}
            response = await server.infer("scaled", {"input-0": rows}, parameters=parameters)
            assert np.array_equal(response.outputs["output-0"].array, rows * factor)

        # Texts, and several outputs
        inputs = {"name": np.array([[b"Ada"], ["Jürgen".encode()]], object), "age": np.array([[36], [5]])}
        outputs = (await server.infer("greeting", inputs)).outputs
        assert outputs["text"].array.ravel().tolist() == [b"Ada is 36", "Jürgen is 5".encode()]
        assert outputs["length"].array.ravel().tolist() == [9, 11]

        # Bytes that are no text, and dates
        outputs = (await server.infer("dated", {"data": np.array([[b"\xff\xfe"], [b"a"]], object)})).outputs
        assert outputs["length"].array.ravel().tolist() == [2, 1]
        days = [text.decode()[:19] for text in outputs["day"].array.ravel().tolist()]
        assert days == ["2024-01-03T00:00:00", "2024-01-02T00:00:00"]

        # No signature, and a model that fails
        response = await server.infer("unsigned", {"x": np.ones((1, 2))})
        assert response.outputs["y"].array.tolist() == [[1.0, 1.0]]
        with pytest.raises(ModserveError, match="the MLflow model failed: ValueError: there is a -1"):
            await server.infer("unsigned", {"x": -np.ones((1, 2))})
        with pytest.raises(ModserveError) as caught:
            await server.infer("scaled", {"input-0": rows.astype(np.float64)})
        assert caught.value.code is Code.INVALID_ARG


async def test_without_a_signature_and_a_configuration(saved: Path, tmp_path: Path) -> None:
    install(saved, tmp_path, "unsigned")
    assert "must specify 'input' and 'output'" in await refusal(tmp_path)


async def test_a_pickle_that_is_cut_off(saved: Path, tmp_path: Path) -> None:
    pickle = next(install(saved, tmp_path, "iris").rglob("model.pkl"))
    pickle.write_bytes(pickle.read_bytes()[:100])
    reason = await refusal(tmp_path)
    assert "truncated" in reason or "EOFError" in reason or "UnpicklingError" in reason


async def test_a_directory_without_the_file(saved: Path, tmp_path: Path) -> None:
    (install(saved, tmp_path, "iris", 'backend: "mlflow"') / "MLmodel").unlink()
    assert "unable to find '" in await refusal(tmp_path)


def test_what_this_mlflow_writes_can_be_read(saved: Path) -> None:
    description = read(saved / "columns")
    assert description.inputs is not None
    shown = [(each.name, each.datatype.name, each.shape, each.optional) for each in description.inputs]
    assert shown == [("a", "FP32", (-1, 1), True), ("b", "BYTES", (-1, 1), False)]
    assert read(saved / "scaled").parameters == ("factor",)
    assert description.loader == "mlflow.pyfunc.model"
    assert description.version
