"""What ``GET /v2/models/{model}/engine`` says of a model: its backend and instances, and what its engine reports."""

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence

from modserve.backends.api import BackendModel, InstanceSpec

_log = logging.getLogger(__name__)


def engine_report(backend: str, engine: BackendModel, specs: Sequence[InstanceSpec]) -> dict[str, object]:
    """As `core.servable.EngineReporter` has it. An engine that reports nothing is called as its backend is.

    Never raises: a report that is no good is told in the log, and left out.
    """
    kinds = Counter(spec.kind.value for spec in specs)
    ours = {"backend": backend, "instances": {"count": len(specs), "kinds": dict(kinds)}}
    return {**ours, "engine": backend, **_reported(backend, engine), **ours}


def _reported(backend: str, engine: BackendModel) -> Mapping[str, object]:
    report = getattr(engine, "report", None)
    if not callable(report):
        return {}
    try:
        said = json.loads(json.dumps(report(), allow_nan=False))
        if not isinstance(said, dict):
            raise TypeError(f"a {type(said).__name__} in place of an object")
    except Exception as error:
        _log.warning("backend '%s' returned an unusable report of its model: %s", backend, error)
        return {}
    return said
