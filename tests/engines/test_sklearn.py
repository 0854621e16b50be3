"""Estimators and pipelines of scikit-learn, from skops files and from pickles."""

import logging
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("skops")

import joblib
import skops.io
import threadpoolctl
from sklearn import datasets
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    GradientBoostingRegressor,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from modserve import Code, InferenceServer, ModserveError, Settings
from modserve.backends.sklearn.acceleration import AcceleratedForest
from modserve.backends.sklearn.backend import SklearnInstance
from modserve.backends.sklearn.shapes import features_of
from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array

IRIS, SPECIES = datasets.load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])[SPECIES]
ROWS = IRIS.astype(np.float32)
PICKLES = {"sklearn": {"allow-pickle": "1"}}
TREES = {"sklearn": {"trusted": "sklearn.tree._tree.Tree"}}
"""skops does not trust the trees of scikit-learn, whose compiled code follows the numbers in a file unchecked."""


def write(repository: Path, name: str, model: Any, filename: str = "model.skops", config: str = "") -> Path:
    version = repository / name / "1"
    version.mkdir(parents=True)
    dump = {".skops": skops.io.dump, ".joblib": joblib.dump}.get(Path(filename).suffix)
    if dump is not None:
        dump(model, version / filename)
    else:
        (version / filename).write_bytes(pickle.dumps(model))
    if config:
        (repository / name / "config.pbtxt").write_text(config)
    return version / filename


async def served(
    repository: Path, name: str, inputs: Mapping[str, Array], outputs: tuple[str, ...] = (), **more: Any
) -> dict[str, Array]:
    async with InferenceServer(Settings(model_repository=(repository,), **more)) as server:
        response = await server.infer(name, inputs, outputs=outputs)
        return {key: np.asarray(tensor.array) for key, tensor in response.outputs.items()}


async def refusal(repository: Path, **more: Any) -> str:
    async with InferenceServer(Settings(model_repository=(repository,), **more)) as server:
        return "".join(row.reason for row in server.index())


async def test_a_classifier_without_a_configuration(tmp_path: Path) -> None:
    model = LogisticRegression(max_iter=500).fit(IRIS, SPECIES)
    write(tmp_path, "iris", model)
    outputs = await served(tmp_path, "iris", {"input-0": ROWS})
    assert {name: (array.shape, array.dtype) for name, array in outputs.items()} == {
        "predict": ((150, 1), np.int64),
        "predict_proba": ((150, 3), np.float64),
    }
    assert np.array_equal(outputs["predict"].ravel(), model.predict(IRIS))
    np.testing.assert_allclose(outputs["predict_proba"], model.predict_proba(IRIS), rtol=1e-5)


async def test_labels_are_texts(tmp_path: Path) -> None:
    model = make_pipeline(StandardScaler(), SVC()).fit(IRIS, NAMES)
    write(tmp_path, "iris", model)
    outputs = await served(tmp_path, "iris", {"input-0": ROWS})
    assert [label.decode() for label in outputs["predict"].ravel()] == model.predict(ROWS).tolist()


async def test_only_the_requested_outputs_are_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = LogisticRegression(max_iter=500).fit(IRIS, SPECIES)
    write(tmp_path, "iris", model)
    calls: list[int] = []
    method = LogisticRegression.predict_proba

    def counted(self: Any, rows: Any) -> Any:
        calls.append(len(rows))
        return method(self, rows)

    monkeypatch.setattr(LogisticRegression, "predict_proba", counted)
    outputs = await served(tmp_path, "iris", {"input-0": ROWS}, ("predict",))
    assert list(outputs) == ["predict"]
    assert max(calls) == 2  # those of the load


CONFIG = """
backend: "sklearn"
max_batch_size: 256
input [ {{ name: "features" data_type: TYPE_FP64 dims: [ 4 ] }} ]
output [ {{ name: "{output}" data_type: {datatype} dims: [ {columns} ] }} ]
parameters {{ key: "method" value: {{ string_value: "{method}" }} }}
"""


@pytest.mark.parametrize(
    ("model", "method"),
    [
        (LogisticRegression(max_iter=500), "decision_function"),
        (LogisticRegression(max_iter=500), "predict_log_proba"),
        (PCA(2), "transform"),
        (RandomForestRegressor(5, random_state=0), "predict"),
    ],
    ids=["decision_function", "predict_log_proba", "transform", "predict"],
)
async def test_methods_by_parameter(tmp_path: Path, model: Any, method: str) -> None:
    model.fit(IRIS, SPECIES)
    expected = getattr(model, method)(IRIS)
    expected = expected if expected.ndim == 2 else expected[:, None]
    text = CONFIG.format(output="scores", datatype="TYPE_FP64", columns=expected.shape[1], method=method)
    write(tmp_path, "model", model, config=text)
    outputs = await served(tmp_path, "model", {"features": IRIS}, backend_config=TREES)
    np.testing.assert_allclose(outputs["scores"], expected, rtol=1e-12)


async def test_texts(tmp_path: Path) -> None:
    texts = ["a good film", "very good", "bad", "a bad, bad film"]
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, ["yes", "yes", "no", "no"])
    write(tmp_path, "reviews", model)
    inputs = {"text": np.array([[text.encode()] for text in texts], object)}
    outputs = await served(tmp_path, "reviews", inputs)
    assert outputs["predict"].ravel().tolist() == [b"yes", b"yes", b"no", b"no"]
    np.testing.assert_allclose(outputs["predict_proba"], model.predict_proba(texts))
    with pytest.raises(ModserveError, match="not UTF-8") as caught:
        await served(tmp_path, "reviews", {"text": np.array([[b"\xff"]], object)})
    assert caught.value.code is Code.INVALID_ARG


async def test_a_sparse_result(tmp_path: Path) -> None:
    texts = ["a b", "b c"]
    model = TfidfVectorizer(token_pattern="[a-z]").fit(texts)
    write(tmp_path, "words", model)
    outputs = await served(tmp_path, "words", {"text": np.array([[b"a b"]], object)})
    np.testing.assert_allclose(outputs["transform"], model.transform(["a b"]).toarray())


@pytest.mark.parametrize("classifies", [True, False])
async def test_forests_are_accelerated(tmp_path: Path, classifies: bool) -> None:
    pytest.importorskip("treelite")
    model = (RandomForestClassifier if classifies else RandomForestRegressor)(20, random_state=0)
    model.fit(IRIS, NAMES if classifies else IRIS.sum(1))
    write(tmp_path, "fast", model)
    slow = 'backend: "sklearn"\nparameters { key: "accelerate" value: { string_value: "false" } }'
    write(tmp_path, "slow", model, config=slow)
    settings = Settings(model_repository=(tmp_path,), backend_config=TREES)
    async with InferenceServer(settings) as server:
        both = [await server.infer(name, {"input-0": ROWS}) for name in ("fast", "slow")]
    for name, tensor in both[0].outputs.items():
        expected, actual = both[1].outputs[name].array, tensor.array
        assert expected.dtype == actual.dtype
        if name == "predict_proba" or not classifies:
            np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-7)
        else:
            assert np.array_equal(actual, expected)


async def test_integers_that_fp32_does_not_hold(tmp_path: Path) -> None:
    pytest.importorskip("treelite")
    numbers = np.arange(2**24, 2**24 + 100)[:, None]
    model = HistGradientBoostingRegressor(max_iter=5, min_samples_leaf=1, max_leaf_nodes=None)
    model.fit(numbers, numbers.ravel() % 2)
    config = """
    backend: "sklearn"
    max_batch_size: 256
    input [ { name: "number" data_type: TYPE_INT64 dims: [ 1 ] } ]
    """
    write(tmp_path, "model", model, "model.pkl", config)
    outputs = await served(tmp_path, "model", {"number": numbers}, backend_config=PICKLES)
    assert np.array_equal(outputs["predict"].ravel(), model.predict(numbers))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("kind", [GradientBoostingRegressor, HistGradientBoostingRegressor, RandomForestRegressor])
async def test_the_estimator_decides_on_rows_without_a_number(tmp_path: Path, kind: Any, value: float) -> None:
    pytest.importorskip("treelite")
    model = kind(random_state=0, **({"max_iter": 5} if "Hist" in kind.__name__ else {"n_estimators": 5}))
    model.fit(IRIS, IRIS.sum(1))
    write(tmp_path, "model", model, "model.pkl")
    rows = ROWS[:2].copy()
    rows[1, 2] = value
    try:
        expected = model.predict(rows)
    except ValueError:
        with pytest.raises(ModserveError, match="refused the request: Input X contains") as caught:
            await served(tmp_path, "model", {"input-0": rows}, backend_config=PICKLES)
        assert caught.value.code is Code.INTERNAL
    else:
        outputs = await served(tmp_path, "model", {"input-0": rows}, backend_config=PICKLES)
        np.testing.assert_allclose(outputs["predict"].ravel(), expected)


def test_rows_for_the_estimator_keep_to_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    method = HistGradientBoostingRegressor.predict

    def counted(self: Any, rows: Any) -> Any:
        pools = threadpoolctl.threadpool_info()
        threads.append(max(pool["num_threads"] for pool in pools if pool["user_api"] == "openmp"))
        return method(self, rows)

    monkeypatch.setattr(HistGradientBoostingRegressor, "predict", counted)
    model = HistGradientBoostingRegressor(max_iter=5).fit(IRIS, SPECIES)
    config = ModelConfig("m", "sklearn", inputs=(TensorSpec("input-0", dtypes.FP32, (-1, 4)),))
    fast = AcceleratedForest(None, None, "1", double=True)
    instance = SklearnInstance(model, features_of(model), {"predict": "predict"}, config, 1, fast)
    assert getattr(instance, "data_dependent", True)
    rows = np.full((2, 4), np.nan, np.float32)
    with threadpoolctl.threadpool_limits(2, user_api="openmp"):
        expected = model.predict(rows)
        assert np.array_equal(instance.execute({"input-0": rows}, ("predict",))["predict"].ravel(), expected)
    assert threads == [2, 1]


CLASSIFIER = AcceleratedForest(None, SPECIES, "1")
REGRESSOR = AcceleratedForest(None, None, "1")


@pytest.mark.parametrize(
    ("datatype", "fast", "dependent"),
    [
        (dtypes.INT32, CLASSIFIER, False),
        (dtypes.FP32, CLASSIFIER, True),
        (dtypes.INT32, REGRESSOR, True),
        (dtypes.INT32, None, True),
    ],
    ids=["whole numbers", "numbers that may not be finite", "a method of the estimator's", "the estimator alone"],
)
def test_whether_the_time_depends_on_the_data(
    datatype: dtypes.Datatype, fast: AcceleratedForest | None, dependent: bool
) -> None:
    model = RandomForestClassifier(2).fit(IRIS, SPECIES)
    config = ModelConfig("m", "sklearn", inputs=(TensorSpec("input-0", datatype, (-1, 4)),))
    methods = {name: name for name in ("predict", "predict_proba")}
    assert SklearnInstance(model, features_of(model), methods, config, 1, fast).data_dependent is dependent


FRAME = """
backend: "sklearn"
max_batch_size: 16
input [
  { name: "size" data_type: TYPE_FP64 dims: [ 1 ] },
  { name: "colour" data_type: TYPE_STRING dims: [ 1 ] }
]
output [ { name: "predict" data_type: TYPE_INT64 dims: [ 1 ] } ]
"""


@pytest.mark.parametrize("config", ["", FRAME], ids=["by itself", "by its configuration"])
async def test_a_frame_of_named_columns(tmp_path: Path, config: str) -> None:
    pandas = pytest.importorskip("pandas")
    from sklearn.compose import ColumnTransformer
    from sklearn.preprocessing import OneHotEncoder

    data = pandas.DataFrame({"size": [1.0, 2.0, 3.0, 4.0], "colour": ["red", "blue", "red", "blue"]})
    columns = ColumnTransformer([("a", StandardScaler(), ["size"]), ("b", OneHotEncoder(), ["colour"])])
    model = make_pipeline(columns, LogisticRegression()).fit(data, [0, 1, 0, 1])
    write(tmp_path, "frames", model, "model.joblib", config)
    inputs = {
        "size": np.array([[1.0], [2.0]]),
        "colour": np.array([[b"red"], [b"blue"]], object),
    }
    outputs = await served(tmp_path, "frames", inputs, ("predict",), backend_config=PICKLES)
    assert outputs["predict"].ravel().tolist() == [0, 1]


# Files


@pytest.mark.parametrize("filename", ["model.joblib", "model.pkl", "model.pickle"])
async def test_pickles_are_for_the_operator_to_allow(
    tmp_path: Path, filename: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "model", LinearRegression().fit(IRIS, SPECIES), filename)
    reason = await refusal(tmp_path)
    assert "is a pickle, and loading a pickle runs its code" in reason
    assert "--backend-config=sklearn,allow-pickle=1" in reason
    with caplog.at_level(logging.WARNING):
        assert await refusal(tmp_path, backend_config=PICKLES) == ""
    assert "which runs its code" in caplog.text


class Majority(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier of the user's own."""

    def fit(self, rows: Any, labels: Any) -> "Majority":
        self.n_features_in_ = rows.shape[1]
        self.classes_, counts = np.unique(labels, return_counts=True)
        self.label_ = self.classes_[np.argmax(counts)]
        return self

    def predict(self, rows: Any) -> Any:
        return np.full(len(rows), self.label_)


async def test_types_that_skops_does_not_trust(tmp_path: Path) -> None:
    write(tmp_path, "model", Majority().fit(IRIS, SPECIES))
    reason = await refusal(tmp_path)
    name = f"{Majority.__module__}.Majority"
    assert f"holds objects of types that skops does not trust by default: {name}" in reason
    assert f"--backend-config=sklearn,trusted={name}" in reason
    outputs = await served(
        tmp_path, "model", {"input-0": ROWS[:2]}, backend_config={"sklearn": {"trusted": f"other.Type; {name}"}}
    )
    assert outputs["predict"].tolist() == [[0], [0]]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off", b"no zip at all" * 20], ids=["empty", "cut", "other"])
@pytest.mark.parametrize("filename", ["model.skops", "model.joblib"])
async def test_damaged_files(tmp_path: Path, filename: str, content: bytes) -> None:
    write(tmp_path, "model", LinearRegression().fit(IRIS, SPECIES), filename).write_bytes(content)
    reason = await refusal(tmp_path, backend_config=PICKLES)
    assert reason.startswith("Invalid argument")
    assert f"1/{filename}' cannot be loaded with scikit-learn" in reason


async def test_an_import_on_another_thread_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's parser may fail then, which no lock of ours prevents."""
    write(tmp_path, "model", LogisticRegression(max_iter=200).fit(IRIS, NAMES))
    load, calls = skops.io.load, 0

    def mixed_up(*arguments: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise SystemError("AST constructor recursion depth mismatch (before=108, after=52)")
        return load(*arguments, **more)

    monkeypatch.setattr(skops.io, "load", mixed_up)
    async with InferenceServer(Settings(model_repository=(tmp_path,))) as server:
        assert server.ready, server.index()
    assert calls == 2


async def test_a_file_of_another_version(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = LinearRegression().fit(IRIS, SPECIES)
    path = write(tmp_path, "model", model)
    state = model.__getstate__() | {"_sklearn_version": "0.24.1"}
    old = LinearRegression.__new__(LinearRegression)
    old.__dict__.update(state)
    assert path.exists()

    from modserve.backends.sklearn.files import _compare_versions

    _compare_versions(old, path, "model")
    assert "was saved by scikit-learn 0.24.1" in caplog.text


# Requests


async def test_rows_that_do_not_fit(tmp_path: Path) -> None:
    text = CONFIG.replace("FP64 dims: [ 4 ]", "FP64 dims: [ -1 ]").format(
        output="predict", datatype="TYPE_INT64", columns=1, method="predict"
    )
    write(tmp_path, "model", KNeighborsClassifier(algorithm="brute").fit(IRIS, SPECIES), config=text)
    for rows, code, problem in (
        (np.zeros((2, 3)), Code.INVALID_ARG, "takes 4 features"),
        (np.full((2, 4), np.nan), Code.INTERNAL, "NaN"),
    ):
        with pytest.raises(ModserveError, match=problem) as caught:
            await served(tmp_path, "model", {"features": rows})
        assert caught.value.code is code


@pytest.mark.parametrize(
    ("output", "method", "reason"),
    [
        ("predict", "score", "'method' is 'score', expected one of: predict, "),
        ("transform", "transform", "output 'transform': LogisticRegression has no method 'transform'"),
    ],
)
async def test_methods_that_are_not_there(tmp_path: Path, output: str, method: str, reason: str) -> None:
    text = CONFIG.format(output=output, datatype="TYPE_INT64", columns=1, method=method)
    write(tmp_path, "model", LogisticRegression(max_iter=500).fit(IRIS, SPECIES), config=text)
    assert reason in await refusal(tmp_path)


async def test_what_is_no_estimator(tmp_path: Path) -> None:
    write(tmp_path, "model", {"a": 1})
    assert "holds an object of the type dict, which has none of the methods" in await refusal(tmp_path)
