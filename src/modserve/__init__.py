"""An inference server that speaks KServe v2 as NVIDIA Triton speaks it, and a library to embed it."""

import importlib
from typing import TYPE_CHECKING, Any

from .__about__ import __version__

if TYPE_CHECKING:
    from .app import InferenceServer, Ports, serve
    from .backends.api import (
        AsyncInstance,
        AsyncRequestInstance,
        Backend,
        BackendInstance,
        BackendModel,
        EngineRequest,
        InstanceHandle,
        InstanceLostError,
        InstanceSpec,
        ModelCaller,
        ModelSource,
        Placement,
        RequestInstance,
    )
    from .core.dtypes import Datatype
    from .core.errors import Code, ModserveError
    from .core.model_config import DescribedTensor, ModelConfig, ModelDescription
    from .core.request import InferenceRequest
    from .core.response import InferenceResponse
    from .core.tensor import Tensor
    from .settings import Settings

__all__ = [
    "AsyncInstance",
    "AsyncRequestInstance",
    "Backend",
    "BackendInstance",
    "BackendModel",
    "Code",
    "Datatype",
    "DescribedTensor",
    "EngineRequest",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceServer",
    "InstanceHandle",
    "InstanceLostError",
    "InstanceSpec",
    "ModelCaller",
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

_HOMES = {
    "app": ("InferenceServer", "Ports", "serve"),
    "backends.api": (
        "AsyncInstance",
        "AsyncRequestInstance",
        "Backend",
        "BackendInstance",
        "BackendModel",
        "EngineRequest",
        "InstanceHandle",
        "InstanceLostError",
        "InstanceSpec",
        "ModelCaller",
        "ModelSource",
        "Placement",
        "RequestInstance",
    ),
    "core.dtypes": ("Datatype",),
    "core.errors": ("Code", "ModserveError"),
    "core.model_config": ("DescribedTensor", "ModelConfig", "ModelDescription"),
    "core.request": ("InferenceRequest",),
    "core.response": ("InferenceResponse",),
    "core.tensor": ("Tensor",),
    "settings": ("Settings",),
}
"""The modules of the public names, which are imported when they are used: the supervisor needs none of them."""

if not TYPE_CHECKING:  # or every name would be one of the package to type checkers

    def __getattr__(name: str) -> Any:
        for module, names in _HOMES.items():
            if name in names:
                value = getattr(importlib.import_module(f".{module}", __name__), name)
                globals()[name] = value
                return value
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
