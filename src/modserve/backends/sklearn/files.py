"""Loads estimators from skops files, which create only objects of trusted types, and from pickles, which run code."""

import logging
import threading
from pathlib import Path
from typing import Any

import sklearn

from modserve.core.errors import ModserveError, internal, invalid

from .. import catalogue
from .options import ALLOW_PICKLE, TRUSTED, Permissions

_log = logging.getLogger(__name__)

SKOPS = (".skops",)
PICKLES = (".joblib", ".pkl", ".pickle")
_MOST_TYPES = 20
_loading = threading.Lock()
"""NumPy reads heads of arrays with Python's own parser, which before Python 3.13 may fail on two threads at a time."""


def load(path: Path, name: str, allowed: Permissions) -> Any:
    """The object in a file. `name` is the model's. Raises INVALID_ARG, and INTERNAL where skops is not installed."""
    if path.suffix not in (*SKOPS, *PICKLES):
        endings = ", ".join((*SKOPS, *PICKLES))
        raise invalid(f"model '{name}': '{path}' is not a scikit-learn file: its name must end in one of: {endings}")
    try:
        with _loading:
            estimator = _from_skops(path, name, allowed) if path.suffix in SKOPS else _from_pickle(path, name, allowed)
    except ModserveError:
        raise
    except Exception as error:  # a file can make of its loading whatever it likes
        what = f"model '{name}': '{path}' cannot be loaded with scikit-learn {sklearn.__version__}"
        raise invalid(f"{what}: {type(error).__name__}: {error}") from error
    _compare_versions(estimator, path, name)
    return estimator


def _from_skops(path: Path, name: str, allowed: Permissions) -> Any:
    try:
        import skops.io as skops
    except ImportError as error:
        command = catalogue.BY_BACKEND["sklearn"].install
        raise internal(
            f"model '{name}': '{path}' needs skops, which cannot be imported ({error}): {command}"
        ) from error
    unknown = sorted({*skops.get_untrusted_types(file=path)} - {*allowed.trusted})
    if unknown:
        listed = ",".join([*allowed.trusted, *unknown[:_MOST_TYPES]])
        raise invalid(
            f"model '{name}': '{path}' holds objects of types that skops does not trust by default: "
            f"{', '.join(unknown[:_MOST_TYPES])}. Creating them may run their code. If you trust the source "
            f"of the file, allow them with --backend-config=sklearn,{TRUSTED}={listed}"
        )
    return skops.load(path, trusted=list(allowed.trusted))


def _from_pickle(path: Path, name: str, allowed: Permissions) -> Any:
    if not allowed.pickles:
        raise invalid(
            f"model '{name}': '{path}' is a pickle, and loading a pickle runs its code. If you "
            f"trust its author, allow pickles with --backend-config=sklearn,{ALLOW_PICKLE}=1; or save the model as "
            "model.skops: skops.io.dump(model, 'model.skops')"
        )
    import joblib

    _log.warning("model '%s': loading the pickle '%s', which runs its code", name, path)
    return joblib.load(path)


def _compare_versions(estimator: Any, path: Path, name: str) -> None:
    """scikit-learn notes in an estimator by which version it was saved, and promises nothing for others."""
    version = getattr(estimator, "__dict__", {}).get("_sklearn_version", sklearn.__version__)
    if version != sklearn.__version__:
        _log.warning(
            "model '%s': '%s' was saved by scikit-learn %s, but this is %s: results may differ",
            name,
            path,
            version,
            sklearn.__version__,
        )
