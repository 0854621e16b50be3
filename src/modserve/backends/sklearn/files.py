"""Loading of estimators from skops files, which create only trusted types, and from pickles, which run code."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import sklearn

from modserve.core.errors import ModserveError, internal, invalid

from .. import catalogue
from .options import ALLOW_PICKLE, TRUSTED, Permissions

_log = logging.getLogger(__name__)

SKOPS = (".skops",)
PICKLES = (".joblib", ".pkl", ".pickle")
_MOST_TYPES = 20
Result = TypeVar("Result")
_loading = threading.Lock()
"""NumPy reads heads of arrays with Python's own parser, which before Python 3.13 may fail on two threads at a time."""


def check(path: Path, name: str, allowed: Permissions) -> None:
    """Check a file. Raises INVALID_ARG if `load` refuses it, without creating any of its objects."""
    _read(path, name, allowed, _check)


def load(path: Path, name: str, allowed: Permissions) -> Any:
    """Load the object in a file. `name` is the model's. Raises INVALID_ARG, and INTERNAL if skops is not installed."""
    estimator = _read(path, name, allowed, _create)
    _compare_versions(estimator, path, name)
    return estimator


def _read(path: Path, name: str, allowed: Permissions, work: Callable[[Path, str, Permissions], Result]) -> Result:
    if path.suffix not in (*SKOPS, *PICKLES):
        endings = ", ".join((*SKOPS, *PICKLES))
        raise invalid(f"model '{name}': '{path}' is not a scikit-learn file: its name must end in one of: {endings}")
    try:
        with _loading:
            try:
                return work(path, name, allowed)
            except SystemError:  # a thread that does something else, such as an import, may use the parser as well
                return work(path, name, allowed)
    except ModserveError:
        raise
    except Exception as error:  # a file can make of its loading whatever it likes
        what = f"model '{name}': '{path}' cannot be loaded with scikit-learn {sklearn.__version__}"
        raise invalid(f"{what}: {type(error).__name__}: {error}") from error


def _create(path: Path, name: str, allowed: Permissions) -> Any:
    _check(path, name, allowed)
    if path.suffix in SKOPS:
        import skops.io as skops

        return skops.load(path, trusted=list(allowed.trusted))
    import joblib

    _log.warning("model '%s': loading the pickle '%s', which runs its code", name, path)
    return joblib.load(path)


def _check(path: Path, name: str, allowed: Permissions) -> None:
    if path.suffix in PICKLES:
        if not allowed.pickles:
            raise invalid(
                f"model '{name}': '{path}' is a pickle, and loading a pickle runs its code. If you "
                f"trust its author, allow pickles with --backend-config=sklearn,{ALLOW_PICKLE}=1; or save the model as "
                "model.skops: skops.io.dump(model, 'model.skops')"
            )
        return
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


def _compare_versions(estimator: Any, path: Path, name: str) -> None:
    """Warn about another version: an estimator has that of its scikit-learn, which promises nothing for others."""
    version = getattr(estimator, "__dict__", {}).get("_sklearn_version", sklearn.__version__)
    if version != sklearn.__version__:
        _log.warning(
            "model '%s': '%s' was saved by scikit-learn %s, but this is %s: results may differ",
            name,
            path,
            version,
            sklearn.__version__,
        )
