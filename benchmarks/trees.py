"""What computes a forest fastest: Treelite, its own library, or ONNX Runtime, for batches of 1 and 1,000 rows.

    python benchmarks/trees.py            # about a minute
    python benchmarks/trees.py --write    # and puts the table into benchmarks/results/tables.md

100 trees each, trained on scikit-learn's breast cancer data (30 features), one thread each, in process, without a
server. The predictors take turns, and the best of all turns counts: CPU time of the process, so that what else the
machine does matters little. Before, all must give the same probabilities.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import treelite
import xgboost
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier

from modserve.backends.fil.forest import read
from modserve.backends.fil.predictors import OnnxPredictor, TreelitePredictor
from modserve.core.tensors.tensor import Array
from overhead import ROOT, put_into_report

SIZES = (1, 1000)
TREES = 100
PAGE = ROOT / "benchmarks" / "results" / "tables.md"

Predictors = Mapping[str, Callable[[Array], Any]]


def forests(folder: Path) -> dict[str, Predictors]:
    """Of each library: what computes its forest, by the engine's name, its own last."""
    features, labels = load_breast_cancer(return_X_y=True)
    rows = features.astype(np.float32)
    boosted = xgboost.XGBClassifier(n_estimators=TREES, max_depth=6, n_jobs=1).fit(rows, labels)
    boosted.save_model(folder / "xgboost.json")
    booster = boosted.get_booster()
    booster.set_param({"nthread": 1})
    light = lightgbm.LGBMClassifier(n_estimators=TREES, n_jobs=1, verbose=-1).fit(rows, labels)
    light.booster_.save_model(folder / "model.txt")
    random = RandomForestClassifier(TREES, random_state=0, n_jobs=1).fit(rows, labels)
    treelite.sklearn.import_model(random).serialize(folder / "checkpoint.tl")
    own: dict[str, tuple[str, str, Callable[[Array], Any]]] = {
        "XGBoost": ("xgboost.json", "xgboost_json", booster.inplace_predict),
        "LightGBM": ("model.txt", "lightgbm", lambda batch: light.booster_.predict(batch, num_threads=1)),
        "scikit-learn, random forest": ("checkpoint.tl", "treelite_checkpoint", random.predict_proba),
    }
    predictors: dict[str, Predictors] = {}
    for name, (filename, kind, library) in own.items():
        path = folder / filename
        predictors[name] = {
            "onnx": OnnxPredictor(read(path, kind), 1),
            "treelite": TreelitePredictor(read(path, kind, for_treelite=True), 1),
            "own": library,
        }
        expected = np.asarray(library(rows)).reshape(len(rows), -1)
        for predictor in predictors[name].values():
            np.testing.assert_allclose(np.asarray(predictor(rows)).reshape(len(rows), -1), expected, atol=1e-5)
    return predictors


def best_us(predictors: Predictors, rows: Array, size: int, turns: int) -> dict[str, float]:
    """Microseconds of CPU for a call, the best of all turns, of each predictor.

    Each call has other rows: for the same ones again, a processor knows the branches by heart.
    """
    batches = [np.ascontiguousarray(rows[begin : begin + size]) for begin in range(0, len(rows) - size + 1, size)]
    calls = max(2, int(400 / size**0.7))
    best = dict.fromkeys(predictors, np.inf)
    for _ in range(turns):
        for name, predictor in predictors.items():
            begin = time.process_time()
            for call in range(calls):
                predictor(batches[call % len(batches)])
            best[name] = min(best[name], (time.process_time() - begin) / calls * 1e6)
    return best


def table(turns: int) -> str:
    lines = ["| forest | rows | ONNX Runtime | Treelite | its own library |", "|---|---|---|---|---|"]
    rows = np.tile(load_breast_cancer(return_X_y=True)[0].astype(np.float32), (2, 1))
    with tempfile.TemporaryDirectory() as folder:
        for name, predictors in forests(Path(folder)).items():
            for size in SIZES:
                best = best_us(predictors, rows, size, turns)
                times = [f"{best['onnx']:,.0f} µs"]
                times += [f"{best[key]:,.0f} µs ({best[key] / best['onnx']:.1f} ×)" for key in ("treelite", "own")]
                lines.append(f"| {name} | {size:,} | {' | '.join(times)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/results/tables.md")
    arguments = parser.parse_args()
    report = table(arguments.turns)
    print(report)
    if arguments.write:
        put_into_report("trees.py", report, PAGE)


if __name__ == "__main__":
    main()
