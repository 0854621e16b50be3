"""An inference server that speaks KServe v2 as NVIDIA Triton speaks it, and a library to embed it."""

from .__about__ import __version__
from .app import InferenceServer, Ports, serve
from .backends.api import (
    Backend,
    BackendInstance,
    BackendModel,
    EngineRequest,
    ModelSource,
    Placement,
    RequestInstance,
)
from .core.dtypes import Datatype
from .core.errors import Code, ModserveError
from .core.model_config import DescribedTensor, ModelConfig, ModelDescription
from .core.response import InferenceResponse
from .core.tensor import Tensor
from .settings import Settings

__all__ = [
    "Backend",
    "BackendInstance",
    "BackendModel",
    "Code",
    "Datatype",
    "DescribedTensor",
    "EngineRequest",
    "InferenceResponse",
    "InferenceServer",
    "ModelConfig",
    "ModelDescription",
    "ModelSource",
    "ModserveError",
    "Placement",
    "Ports",
    "RequestInstance",
    "Settings",
    "Tensor",
    "__version__",
    "serve",
]
