"""Forests give what their own libraries give, by the parameters of Triton's forest backend."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("treelite")
pytest.importorskip("xgboost")
pytest.importorskip("lightgbm")
pytest.importorskip("sklearn")

from forests import config, data, lightgbm_model, sklearn_model, write, xgboost_model

from modserve import Code, InferenceServer, ModserveError, Settings
from modserve.backends.fil.forest import Forest, read
from modserve.backends.fil.formats import kind_of
from modserve.backends.fil.predictors import OnnxPredictor
from modserve.core.tensors.tensor import Array


async def all_served(repository: Path, rows: Array) -> dict[str, dict[str, Array]]:
    """The outputs of each model of a server of its own."""
    async with InferenceServer(Settings(model_repository=(repository,))) as server:
        responses = {row.name: await server.infer(row.name, {"input__0": rows}) for row in server.index()}
    return {
        name: {key: np.asarray(tensor.array) for key, tensor in response.outputs.items()}
        for name, response in responses.items()
    }


async def served(repository: Path, name: str, rows: Array) -> Mapping[str, Array]:
    return (await all_served(repository, rows))[name]


async def output(repository: Path, name: str, rows: Array) -> Array:
    return (await served(repository, name, rows))["output__0"]


def with_gaps(rows: Array) -> Array:
    rows = rows.copy()
    rows[np.random.default_rng(0).random(rows.shape) < 0.1] = np.nan
    return rows


XGBOOST = ["xgboost.json", "xgboost.ubj", "xgboost.model"]


@pytest.mark.parametrize("filename", XGBOOST)
async def test_without_a_configuration_the_file_name_suffices(tmp_path: Path, filename: str) -> None:
    model, (rows, _) = xgboost_model("iris"), data("iris")
    write(tmp_path, "iris", model, filename)
    classes = await output(tmp_path, "iris", rows)
    assert classes.shape == (150, 1)
    assert classes.dtype == np.float32
    assert np.array_equal(classes.ravel(), model.predict(rows))


@pytest.mark.parametrize("name", ["iris", "digits", "breast_cancer"])
@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
async def test_probabilities(tmp_path: Path, library: str, name: str) -> None:
    model = xgboost_model(name) if library == "xgboost" else lightgbm_model(name)
    rows = data(name)[0]
    filename, model_type = ("xgboost.json", "xgboost_json") if library == "xgboost" else ("model.txt", "lightgbm")
    expected = model.predict_proba(rows)
    # "Binary models are considered to have a single class", whose probability is that of the second.
    columns = 1 if name == "breast_cancer" else expected.shape[1]
    text = config(rows.shape[1], columns, model_type=model_type, predict_proba="true", output_class="true")
    write(tmp_path, "model", model, filename, text)
    probabilities = await output(tmp_path, "model", rows[:1000])
    assert probabilities.shape == (min(1000, len(rows)), columns)
    np.testing.assert_allclose(probabilities, expected[:1000, -columns:], rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("gaps", [False, True], ids=["whole", "with missing values"])
@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
async def test_both_classes_of_two_and_missing_values(tmp_path: Path, library: str, gaps: bool) -> None:
    model = xgboost_model("breast_cancer") if library == "xgboost" else lightgbm_model("breast_cancer")
    rows = with_gaps(data("breast_cancer")[0]) if gaps else data("breast_cancer")[0]
    text = config(30, 2, predict_proba="true")
    write(tmp_path, "model", model, "xgboost.ubj" if library == "xgboost" else "model.txt", text)
    probabilities = await output(tmp_path, "model", rows)
    np.testing.assert_allclose(probabilities, model.predict_proba(rows), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
async def test_regression(tmp_path: Path, library: str) -> None:
    model = xgboost_model("diabetes") if library == "xgboost" else lightgbm_model("diabetes")
    rows = data("diabetes")[0]
    filename = "xgboost.json" if library == "xgboost" else "model.txt"
    write(tmp_path, "model", model, filename, config(10, 1, output_class="false"))
    np.testing.assert_allclose((await output(tmp_path, "model", rows)).ravel(), model.predict(rows), rtol=1e-5)


@pytest.mark.parametrize(
    "kind",
    ["RandomForestClassifier", "ExtraTreesClassifier", "GradientBoostingClassifier", "HistGradientBoostingClassifier"],
)
@pytest.mark.parametrize("name", ["iris", "breast_cancer"])
async def test_classifiers_of_scikit_learn(tmp_path: Path, kind: str, name: str) -> None:
    model, rows = sklearn_model(kind, name), data(name)[0]
    expected = model.predict_proba(rows)
    single = name == "breast_cancer" and "Boosting" in kind  # gives one number
    columns = 1 if single else expected.shape[1]
    write(tmp_path, "proba", model, "checkpoint.tl", config(rows.shape[1], columns, predict_proba="true"))
    write(tmp_path, "classes", model, "checkpoint.tl", config(rows.shape[1], 1, output_class="true"))
    outputs = await all_served(tmp_path, rows)
    np.testing.assert_allclose(outputs["proba"]["output__0"], expected[:, -columns:], rtol=1e-5, atol=1e-6)
    assert np.array_equal(outputs["classes"]["output__0"].ravel(), model.predict(rows))


@pytest.mark.parametrize("kind", ["ExtraTreesRegressor", "RandomForestRegressor", "GradientBoostingRegressor"])
async def test_regressors_of_scikit_learn(tmp_path: Path, kind: str) -> None:
    model, rows = sklearn_model(kind, "diabetes"), data("diabetes")[0]
    write(tmp_path, "model", model, "checkpoint.tl")
    np.testing.assert_allclose((await output(tmp_path, "model", rows)).ravel(), model.predict(rows), rtol=1e-5)


async def test_several_targets(tmp_path: Path) -> None:
    """More than Triton's, which takes no such model."""
    from sklearn.ensemble import ExtraTreesRegressor

    rows, labels = data("diabetes")
    model = ExtraTreesRegressor(5, random_state=0).fit(rows, np.stack([labels, -2 * labels], 1))
    write(tmp_path, "model", model, "checkpoint.tl")
    values = await output(tmp_path, "model", rows)
    assert values.shape == (len(rows), 2)
    np.testing.assert_allclose(values, model.predict(rows), rtol=1e-5)


async def test_isolation(tmp_path: Path) -> None:
    model, rows = sklearn_model("IsolationForest", "iris"), data("iris")[0]
    write(tmp_path, "model", model, "checkpoint.tl")
    scores = await output(tmp_path, "model", rows)
    np.testing.assert_allclose(scores.ravel(), -model.score_samples(rows), rtol=1e-5)


@pytest.mark.parametrize("threshold", [0.02, 0.98])
async def test_a_threshold(tmp_path: Path, threshold: float) -> None:
    model, rows = xgboost_model("breast_cancer"), data("breast_cancer")[0]
    forest = sklearn_model("RandomForestClassifier", "breast_cancer")
    text = config(30, 1, output_class="true", threshold=str(threshold))
    write(tmp_path, "one_number", model, "xgboost.json", text)
    write(tmp_path, "two_numbers", forest, "checkpoint.tl", text)
    outputs = await all_served(tmp_path, rows)
    for name, expected in (("one_number", model), ("two_numbers", forest)):
        assert np.array_equal(outputs[name]["output__0"].ravel(), expected.predict_proba(rows)[:, 1] > threshold)


async def test_the_newer_name_of_output_class(tmp_path: Path) -> None:
    model, rows = xgboost_model("iris"), data("iris")[0]
    write(tmp_path, "model", model, "xgboost.json", config(4, 3, is_classifier="false"))
    np.testing.assert_allclose(await output(tmp_path, "model", rows), model.predict_proba(rows), rtol=1e-5, atol=1e-7)


# Precision and engines


async def test_values_between_two_fp32_numbers(tmp_path: Path) -> None:
    """FP32 inputs take the branches of the library's FP64 thresholds; FP64 inputs are not rounded."""
    from sklearn.ensemble import ExtraTreesRegressor

    rows = np.linspace(0, 1, 1000)[:, None]
    model = ExtraTreesRegressor(10, random_state=0).fit(rows, np.arange(1000))
    write(tmp_path / "fp32", "single", model, "checkpoint.tl")
    write(
        tmp_path / "fp64",
        "double",
        model,
        "checkpoint.tl",
        config(1, 1).replace('"input__0" data_type: TYPE_FP32', '"input__0" data_type: TYPE_FP64'),
    )
    single = rows.astype(np.float32)
    np.testing.assert_allclose(
        (await output(tmp_path / "fp32", "single", single)).ravel(), model.predict(single), rtol=1e-5
    )
    np.testing.assert_allclose(
        (await output(tmp_path / "fp64", "double", rows)).ravel(), model.predict(rows), rtol=1e-5
    )


def categories() -> tuple[Any, Array]:
    import lightgbm

    random = np.random.default_rng(0)
    rows = np.stack([random.integers(0, 12, 600), random.random(600)], 1).astype(np.float32)
    labels = np.isin(rows[:, 0], [1, 4, 7, 8]) * 2.0 + rows[:, 1]
    model = lightgbm.LGBMRegressor(n_estimators=10, verbose=-1, n_jobs=1, min_child_samples=3)
    return model.fit(rows, labels, categorical_feature=[0]), rows


async def test_categories_run_on_treelite(tmp_path: Path) -> None:
    model, rows = categories()
    write(tmp_path, "model", model, "model.txt")
    np.testing.assert_allclose((await output(tmp_path, "model", rows)).ravel(), model.predict(rows), rtol=1e-5)


async def test_categories_of_xgboost(tmp_path: Path) -> None:
    import xgboost

    random = np.random.default_rng(0)
    rows = np.stack([random.integers(0, 12, 600), random.random(600)], 1).astype(np.float32)
    labels = np.isin(rows[:, 0], [1, 4, 7, 8]) * 2.0 + rows[:, 1]
    matrix = xgboost.DMatrix(rows, labels, feature_types=["c", "q"], enable_categorical=True)
    model = xgboost.train({"nthread": 1, "max_cat_to_onehot": 1}, matrix, 10)
    write(tmp_path, "model", model, "xgboost.json")
    np.testing.assert_allclose((await output(tmp_path, "model", rows)).ravel(), model.predict(matrix), rtol=1e-5)


@pytest.mark.parametrize("predictor", ["onnxruntime", "treelite"])
async def test_both_predictors(tmp_path: Path, predictor: str) -> None:
    model, rows = xgboost_model("digits"), data("digits")[0]
    write(tmp_path, "model", model, "xgboost.ubj", config(64, 10, predict_proba="true", predictor=predictor))
    np.testing.assert_allclose(
        await output(tmp_path, "model", rows[:1024]), model.predict_proba(rows[:1024]), rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize(
    ("objective", "labels"),
    [
        ("count:poisson", "diabetes"),
        ("reg:tweedie", "diabetes"),
        ("binary:logitraw", "breast_cancer"),
        ("binary:hinge", "breast_cancer"),
        ("rank:pairwise", "diabetes"),
    ],
)
async def test_objectives(tmp_path: Path, objective: str, labels: str) -> None:
    import xgboost

    rows, targets = data(labels)
    matrix = xgboost.DMatrix(rows, targets % 5 if objective.startswith("rank") else targets)
    model = xgboost.train({"objective": objective, "nthread": 1}, matrix, 10)
    write(tmp_path, "model", model, "xgboost.json", config(rows.shape[1], 1, output_class="false"))
    values = await output(tmp_path, "model", rows)
    np.testing.assert_allclose(values.ravel(), model.predict(matrix), rtol=2e-5, atol=1e-6)


# Contributions


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
async def test_contributions_add_up_to_the_margin(tmp_path: Path, library: str) -> None:
    model = xgboost_model("diabetes") if library == "xgboost" else lightgbm_model("diabetes")
    rows = data("diabetes")[0]
    shap = ', { name: "treeshap_output" data_type: TYPE_FP32 dims: [ 11 ] }'
    filename = "xgboost.json" if library == "xgboost" else "model.txt"
    write(tmp_path, "model", model, filename, config(10, 1, shap, output_class="false"))
    outputs = await served(tmp_path, "model", rows)
    assert outputs["treeshap_output"].shape == (len(rows), 11)
    np.testing.assert_allclose(outputs["treeshap_output"].sum(1), outputs["output__0"].ravel(), rtol=1e-4)


async def test_contributions_for_each_class(tmp_path: Path) -> None:
    model, rows = xgboost_model("iris"), data("iris")[0]
    shap = ', { name: "treeshap_output" data_type: TYPE_FP32 dims: [ 15 ] }'
    write(tmp_path, "model", model, "xgboost.json", config(4, 3, shap, predict_proba="true"))
    outputs = await served(tmp_path, "model", rows)
    margins = outputs["treeshap_output"].reshape(-1, 3, 5).sum(2)
    odds = np.exp(margins - margins.max(1, keepdims=True))
    np.testing.assert_allclose(odds / odds.sum(1, keepdims=True), outputs["output__0"], rtol=1e-4)


# Refused


async def refusal(repository: Path, **more: Any) -> str:
    """Why the server does not load its model."""
    async with InferenceServer(Settings(model_repository=(repository,), **more)) as server:
        return "".join(row.reason for row in server.index())


@pytest.mark.parametrize("width", [0, 3, 5])
async def test_a_row_of_another_width(tmp_path: Path, width: int) -> None:
    write(tmp_path, "model", xgboost_model("iris"), "xgboost.json", config(-1, -1))
    rows = data("iris")[0][:2]
    assert np.array_equal((await output(tmp_path, "model", rows)).ravel(), xgboost_model("iris").predict(rows))
    with pytest.raises(ModserveError, match=f"shape .2, {width}., but this forest takes 4 features") as caught:
        await output(tmp_path, "model", np.zeros((2, width), np.float32))
    assert caught.value.code is Code.INVALID_ARG


async def test_other_types_of_numbers(tmp_path: Path) -> None:
    text = (
        config(64, 1)
        .replace("TYPE_FP32 dims: [ 64 ]", "TYPE_INT32 dims: [ 64 ]")
        .replace("TYPE_FP32 dims: [ 1 ]", "TYPE_INT64 dims: [ 1 ]")
    )
    rows = data("digits")[0][:100]
    write(tmp_path, "model", xgboost_model("digits"), "xgboost.json", text)
    classes = await output(tmp_path, "model", rows.astype(np.int32))
    assert classes.dtype == np.int64
    assert np.array_equal(classes.ravel(), xgboost_model("digits").predict(rows))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (config(4, 3), r"tensor 'output__0'.*\[-1,1\].*\[-1,3\]"),
        (config(5, 1), r"tensor 'input__0'.*\[-1,4\].*\[-1,5\]"),
        (config(4, 1).replace("TYPE_FP32 dims: [ 4 ]", "TYPE_STRING dims: [ 4 ]"), "input__0"),
        (config(4, 1, model_type="lightgbm"), "type 'lightgbm': .*does not begin with the line 'tree'"),
        (config(4, 1, model_type="treelite_checkpoint"), "type 'treelite_checkpoint'|no treelite_checkpoint model"),
        (config(4, 1, model_type="catboost"), "'model_type' is 'catboost', expected one of: xgboost_json, "),
        (config(4, 1, threshold="high"), "'threshold' is 'high', expected a number"),
        (config(4, 1, predictor="gpu"), "'predictor' is 'gpu', expected one of: onnxruntime, treelite"),
    ],
    ids=["outputs", "inputs", "strings", "lightgbm", "treelite", "unknown type", "threshold", "predictor"],
)
async def test_a_configuration_that_does_not_fit(tmp_path: Path, text: str, reason: str) -> None:
    write(tmp_path, "model", xgboost_model("iris"), "xgboost.json", text)
    assert re.search(reason, await refusal(tmp_path), re.DOTALL), await refusal(tmp_path)


async def test_contributions_of_a_checkpoint(tmp_path: Path) -> None:
    shap = ', { name: "treeshap_output" data_type: TYPE_FP32 dims: [ 5 ] }'
    write(tmp_path, "model", sklearn_model("RandomForestClassifier", "iris"), "checkpoint.tl", config(4, 1, shap))
    assert "'treeshap_output' is for files of XGBoost and LightGBM" in await refusal(tmp_path)


async def test_parameters_without_effect(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    parameters = {"storage_type": "AUTO", "chunk_size": "4", "treshold": "1", "predict_probas": "true"}
    write(tmp_path, "model", xgboost_model("iris"), "xgboost.json", config(4, 1, **parameters))
    assert await refusal(tmp_path) == ""
    for text in (
        "'storage_type' has no effect: it is for GPUs",
        "'chunk_size' has no effect: the engine",
        "'treshold' has no effect: backend 'fil' does not know it; did you mean 'threshold'?",
        "did you mean 'predict_proba'?",
    ):
        assert text in caplog.text


def spoilt(content: bytes, seed: int) -> bytes:
    """A file that has been cut off, or some of whose bytes are others."""
    random = np.random.default_rng(seed)
    if seed % 3 == 0:
        return content[: int(len(content) * random.random())]
    changed = bytearray(content)
    for at in random.integers(0, len(content), random.integers(1, 12)).tolist():
        changed[at] = random.choice([0, 1, 57, 127, 128, 255])
    return bytes(changed)


@pytest.mark.parametrize("filename", ["xgboost.json", "xgboost.ubj", "model.txt", "checkpoint.tl"])
def test_damaged_files(tmp_path: Path, filename: str) -> None:
    """Each is refused in words, or is a forest all the same. Treelite, in the server, would bring that down."""
    models = {"model.txt": lightgbm_model("iris"), "checkpoint.tl": sklearn_model("GradientBoostingClassifier", "iris")}
    path = write(tmp_path, "model", models.get(filename, xgboost_model("iris")), filename) / filename
    content, kind = path.read_bytes(), kind_of(path, "")
    refusals = 0
    for seed in range(6):
        path.write_bytes(spoilt(content, seed))
        forest, error = attempt(path, kind)
        if error is not None:
            assert (error.code, str(path) in error.message) == (Code.INVALID_ARG, True)
            refusals += 1
        elif forest is not None and not forest.obstacle:
            rows = np.zeros((3, forest.features), np.float32)
            assert OnnxPredictor(forest, 1)(rows).shape == (3, forest.columns)
    assert refusals >= 2
    for nothing in (b"", b"nothing of the kind" * 100):
        path.write_bytes(nothing)
        assert attempt(path, kind)[1] is not None


def attempt(path: Path, kind: str) -> tuple[Forest | None, ModserveError | None]:
    try:
        return read(path, kind, limit_s=4), None
    except ModserveError as error:
        return None, error


def test_a_lightgbm_file_that_is_cut_off(tmp_path: Path) -> None:
    """Treelite takes it for a smaller forest, which would give other results without a word."""
    path = write(tmp_path, "model", lightgbm_model("iris"), "model.txt") / "model.txt"
    content = path.read_bytes()
    path.write_bytes(content[: content.index(b"Tree=40")])
    with pytest.raises(ModserveError, match="truncated: it has 40 of the 60 trees that its header announces"):
        read(path, "lightgbm")


async def test_an_unknown_field_of_xgboost(tmp_path: Path) -> None:
    version = write(tmp_path, "model", xgboost_model("iris"), "xgboost.json")
    path = version / "xgboost.json"
    path.write_bytes(path.read_bytes().replace(b'{"learner":{', b'{"learner":{"of_the_future":{"a":1},', 1))
    assert "of_the_future" in await refusal(tmp_path)
    (tmp_path / "model" / "config.pbtxt").write_text(config(4, 1, xgboost_allow_unknown_field="true"))
    assert await refusal(tmp_path) == ""
