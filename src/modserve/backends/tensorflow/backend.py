"""The ``tensorflow`` backend: SavedModels and frozen graphs on TensorFlow, or on OpenVINO instead.

TensorFlow is large, and many SavedModels run without it. The choice is made once, when the backend is
created, so this module imports neither at its top.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..api import BackendModel, ModelSource
from ..catalogue import BY_BACKEND
from ..code import OperatorLibraries
from .options import BACKEND_OPTIONS

if TYPE_CHECKING:
    from .engine import TensorFlowEngine
    from .stand_in import OpenVinoStandIn


class TensorFlowBackend(OperatorLibraries):
    default_model_filename = "model.savedmodel"
    known_options: Mapping[str, str] = BACKEND_OPTIONS

    def __init__(self) -> None:
        self._engine = _engine()
        self.default_cpu_instances: int = self._engine.default_cpu_instances
        self.any_thread: bool = self._engine.any_thread

    def gpu_count(self) -> int:
        return self._engine.gpu_count()

    def open(self, source: ModelSource) -> BackendModel:
        return self._engine.open(source)


def _engine() -> "TensorFlowEngine | OpenVinoStandIn":
    """Return TensorFlow's engine, or a stand-in if it is not installed."""
    if BY_BACKEND["tensorflow"].stand_in is None:
        from .engine import TensorFlowEngine

        return TensorFlowEngine()
    from .stand_in import OpenVinoStandIn

    return OpenVinoStandIn()
