"""Imports engines in an order, runs each, and says which OpenMP runtimes are in the process. A program, for a test.

Arguments: the engines' names in order. Prints a line of JSON: the results that were wrong, and the libraries.
"""

import json
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

ROWS = np.random.default_rng(0).random((512, 8), np.float32)
WEIGHTS = np.random.default_rng(1).random((8, 8), np.float32)
PRODUCT = ROWS.astype(np.float64) @ WEIGHTS
LABELS = (ROWS.sum(1) > 4).astype(np.int64)


def torch() -> Callable[[], Any]:
    import torch

    weights = torch.from_numpy(WEIGHTS)
    return lambda: (torch.from_numpy(ROWS) @ weights).numpy() - PRODUCT


def onnxruntime() -> Callable[[], Any]:
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper

    onnx_rows = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 8])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 8])
    constant = helper.make_tensor("w", TensorProto.FLOAT, WEIGHTS.shape, WEIGHTS.ravel())
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [onnx_rows], [result], [constant])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert isinstance(model, onnx.ModelProto)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return lambda: session.run(None, {"x": ROWS})[0] - PRODUCT


def openvino() -> Callable[[], Any]:
    import openvino
    import openvino.opset13 as ops

    rows = ops.parameter([-1, 8], np.float32)
    model = openvino.Model([ops.matmul(rows, ops.constant(WEIGHTS), False, False)], [rows])
    compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda: compiled.create_infer_request().infer(ROWS)[0] - PRODUCT


def sklearn() -> Callable[[], Any]:
    from sklearn.ensemble import HistGradientBoostingClassifier

    model = HistGradientBoostingClassifier(max_iter=5).fit(ROWS, LABELS)
    expected = model.predict_proba(ROWS)
    return lambda: model.predict_proba(ROWS) - expected


def xgboost() -> Callable[[], Any]:
    import xgboost

    model = xgboost.XGBClassifier(n_estimators=5, n_jobs=2).fit(ROWS, LABELS)
    expected = np.concatenate([model.predict_proba(ROWS[:256]), model.predict_proba(ROWS[256:])])
    return lambda: model.predict_proba(ROWS) - expected


def lightgbm() -> Callable[[], Any]:
    import lightgbm

    model = lightgbm.LGBMClassifier(n_estimators=5, n_jobs=2, verbose=-1).fit(ROWS, LABELS)
    expected = np.concatenate([model.booster_.predict(ROWS[:256]), model.booster_.predict(ROWS[256:])])
    return lambda: model.booster_.predict(ROWS) - expected


def treelite() -> Callable[[], Any]:
    import treelite
    from sklearn.ensemble import RandomForestClassifier

    model = RandomForestClassifier(5, random_state=0).fit(ROWS, LABELS)
    forest = treelite.sklearn.import_model(model)
    return lambda: treelite.gtil.predict(forest, ROWS, nthread=2)[:, 0, :] - model.predict_proba(ROWS)


def main() -> None:
    names = sys.argv[1:]
    wrong: list[str] = []
    runs = {name: globals()[name]() for name in names}

    def often(name: str) -> None:
        for _ in range(20):
            run(name)

    def run(name: str) -> None:
        try:
            error = float(np.abs(np.asarray(runs[name]())).max())
        except Exception as failure:
            wrong.append(f"{name}: {type(failure).__name__}: {failure}")
            return
        if not error < 1e-3:
            wrong.append(f"{name}: differs by {error}")

    for name in names:
        run(name)
    # All at the same time, from threads that each engine sees for the first time.
    threads = [threading.Thread(target=often, args=(name,)) for name in names * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with open("/proc/self/maps", encoding="utf-8") as file:
        paths = {line.split(maxsplit=5)[-1].strip() for line in file if "/" in line}
    omp = sorted(path for path in paths if any(part in path for part in ("libgomp", "libiomp", "libomp", "libtbb")))
    print(json.dumps({"wrong": wrong, "runtimes": omp}))


if __name__ == "__main__":
    main()
