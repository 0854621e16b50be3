"""An inference server with the KServe v2 protocol, compatible with NVIDIA Triton, and a library to embed it."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from .__about__ import __version__

if TYPE_CHECKING:
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
        ModelMetric,
        ModelMetrics,
        ModelSource,
        Placement,
        RequestInstance,
    )
    from .backends.python.worker.decorator import Context, InvalidInputError, Spec, model
    from .client.errors import ClientError, ClientTimeoutError
    from .client.facade import AsyncClient, Client
    from .client.input_values import ModelMetadata, Result
    from .core.configuration.model_config import DescribedTensor, ModelConfig, ModelDescription
    from .core.errors import Code, ModserveError
    from .core.requests.request import InferenceRequest
    from .core.requests.response import InferenceResponse
    from .core.tensors.dtypes import Datatype
    from .core.tensors.tensor import DeviceTensor, Tensor
    from .library.connecting import connect, connect_async
    from .library.mounting import Mounted, asgi
    from .process.app import InferenceServer, serve
    from .process.listeners import Ports
    from .settings import Settings

__all__ = [
    "AsyncClient",
    "AsyncInstance",
    "AsyncRequestInstance",
    "Backend",
    "BackendInstance",
    "BackendModel",
    "Client",
    "ClientError",
    "ClientTimeoutError",
    "Code",
    "Context",
    "Datatype",
    "DescribedTensor",
    "DeviceTensor",
    "EngineRequest",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceServer",
    "InstanceHandle",
    "InstanceLostError",
    "InstanceSpec",
    "InvalidInputError",
    "ModelCaller",
    "ModelConfig",
    "ModelDescription",
    "ModelMetadata",
    "ModelMetric",
    "ModelMetrics",
    "ModelSource",
    "ModserveError",
    "Mounted",
    "Placement",
    "Ports",
    "RequestInstance",
    "Result",
    "Settings",
    "Spec",
    "Tensor",
    "__version__",
    "asgi",
    "connect",
    "connect_async",
    "model",
    "serve",
]

_WORKER = "modserve_worker" if "modserve_worker" in sys.modules else ".backends.python.worker"
"""A worker process of a Python model has this package by a name of its own."""
_HOMES = {
    **dict.fromkeys(("InferenceServer", "serve"), ".process.app"),
    "Ports": ".process.listeners",
    **dict.fromkeys(("Context", "InvalidInputError", "Spec", "model"), f"{_WORKER}.decorator"),
    **dict.fromkeys(("ClientError", "ClientTimeoutError"), ".client.errors"),
    **dict.fromkeys(("AsyncClient", "Client"), ".client.facade"),
    **dict.fromkeys(("ModelMetadata", "Result"), ".client.input_values"),
    **dict.fromkeys(("connect", "connect_async"), ".library.connecting"),
    **dict.fromkeys(("Mounted", "asgi"), ".library.mounting"),
    "Datatype": ".core.tensors.dtypes",
    **dict.fromkeys(("Code", "ModserveError"), ".core.errors"),
    **dict.fromkeys(("DescribedTensor", "ModelConfig", "ModelDescription"), ".core.configuration.model_config"),
    "InferenceRequest": ".core.requests.request",
    "InferenceResponse": ".core.requests.response",
    **dict.fromkeys(("DeviceTensor", "Tensor"), ".core.tensors.tensor"),
    "Settings": ".settings",
}
"""The modules of public names that are not in `backends.api`; imported at first use: the supervisor needs none."""

if not TYPE_CHECKING:  # or every name would be one of the package to type checkers

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
        module = importlib.import_module(_HOMES.get(name, ".backends.api"), __name__)
        return globals().setdefault(name, getattr(module, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
