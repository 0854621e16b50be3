"""Input and output tensors of an estimator, derived from its fitted attributes and from a trial run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from modserve.core.configuration.model_config import DescribedTensor
from modserve.core.errors import invalid, unsupported
from modserve.core.tensors import dtypes
from modserve.core.tensors.tensor import Array

from ..tensors import object_array

INPUT, TEXT = "input-0", "text"
"""KServe's name for the features, in its documentation; ours for a pipeline that begins with a text."""


@dataclass(frozen=True, slots=True)
class Features:
    """The features of an estimator. `columns` has an example for each column of a frame; None where rows are enough.

    `count` is 0 for texts, and if the estimator does not know it.
    """

    count: int
    text: bool = False
    columns: Mapping[str, float | str] | None = None


def steps(estimator: Any) -> list[Any]:
    """Return the estimators of a pipeline, of nested pipelines, too; or the one."""
    inner = getattr(estimator, "steps", None)
    if not isinstance(inner, list):
        return [estimator]
    return [each for _, step in inner if step not in (None, "passthrough") for each in steps(step)]


def features_of(estimator: Any) -> Features:
    first = (steps(estimator) or [estimator])[0]
    if hasattr(first, "build_analyzer"):  # of scikit-learn's vectorizers
        return Features(0, text=True)
    try:
        count = int(getattr(estimator, "n_features_in_", 0))
    except AttributeError:
        count = 0
    names = getattr(estimator, "feature_names_in_", None)
    transformers = getattr(first, "transformers_", None)
    if names is None or transformers is None:
        return Features(count)
    return Features(count, columns=_columns([str(name) for name in names], transformers))


def _columns(names: Sequence[str], transformers: Sequence[tuple[str, Any, Any]]) -> dict[str, float | str]:
    """Return texts for columns with a transformer of texts or of learnt text categories; numbers for others."""
    columns: dict[str, float | str] = dict.fromkeys(names, 0.0)
    for _, transformer, chosen in transformers:
        selected = [chosen] if isinstance(chosen, str) else np.asarray(names)[chosen] if _positions(chosen) else chosen
        for place, name in enumerate(selected):
            examples = [example for step in steps(transformer) if (example := _example(step, place)) is not None]
            columns[str(name)] = examples[0] if examples else columns[str(name)]
    return columns


def _positions(chosen: Any) -> bool:
    return isinstance(chosen, slice) or np.asarray(chosen).dtype.kind in "bi"


def _example(transformer: Any, place: int) -> float | str | None:
    """Return a known value of a transformer's column number `place`."""
    categories = getattr(transformer, "categories_", ())
    if place < len(categories):
        known = [each for each in np.asarray(categories[place]).tolist() if each == each and each is not None]
        return known[0] if known and isinstance(known[0], str) else float(known[0]) if known else None
    return "a text" if hasattr(transformer, "build_analyzer") else None


def sample(features: Features, rows: int) -> Any:
    """Return rows to try an estimator with; None if none are known."""
    if features.text:
        return ["a text"] * rows
    if features.columns is not None:
        return frame(
            {
                name: np.array([value] * rows, object if isinstance(value, str) else None)
                for name, value in features.columns.items()
            }
        )
    return np.zeros((rows, features.count), np.float32) if features.count else None


def frame(columns: Mapping[str, Array]) -> Any:
    """Make a pandas frame. Raises INVALID_ARG if pandas is not installed."""
    try:
        import pandas
    except ImportError as error:
        raise invalid(
            "this model selects its features by column names and therefore needs pandas, "
            f"which is not installed here ({error}): pip install pandas"
        ) from error
    return pandas.DataFrame(dict(columns))


def inputs_of(features: Features) -> tuple[DescribedTensor, ...]:
    if features.text:
        return (DescribedTensor(TEXT, dtypes.BYTES, (-1, 1)),)
    if features.columns is not None:
        columns = features.columns.items()
        datatypes = [(name, dtypes.BYTES if isinstance(value, str) else dtypes.FP64) for name, value in columns]
        return tuple(DescribedTensor(name, datatype, (-1, 1)) for name, datatype in datatypes)
    return (DescribedTensor(INPUT, dtypes.FP32, (-1, features.count)),)


def output_of(name: str, values: Array) -> DescribedTensor:
    """Describe an output. Raises UNSUPPORTED for elements without a datatype."""
    datatype = dtypes.from_numpy(values.dtype)
    if datatype is None:
        raise unsupported(f"the results of '{name}' have the numpy type {values.dtype}, which has no v2 datatype")
    return DescribedTensor(name, datatype, (-1, *values.shape[1:]))


def as_tensor(name: str, values: Any) -> Array:
    """Return results with a first dimension of rows and at least one more; texts are bytes. Raises UNSUPPORTED."""
    if hasattr(values, "toarray"):  # a sparse matrix
        values = values.toarray()
    if isinstance(values, list | tuple):
        raise unsupported(f"'{name}' of this model returns {len(values)} arrays; only one array can be served")
    if isinstance(values, np.ndarray) and np.ma.is_masked(values):
        raise unsupported(f"'{name}' of this model returned masked elements, which have no value to send")
    array: Array = np.asarray(values)
    if array.dtype.kind in "OSU":
        flat = [each if isinstance(each, bytes) else str(each).encode() for each in array.ravel().tolist()]
        array = object_array(flat, array.shape)
    return array.reshape(-1, 1) if array.ndim == 1 else array
