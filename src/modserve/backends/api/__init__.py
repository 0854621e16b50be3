"""The backend API: what an engine implements to run models, second edition.

Three small objects: a `Backend` (one in the process) opens model files; a `BackendModel` is one opened model version;
an instance executes batches. A package offers a backend by an entry point in the group ``modserve.backends`` whose name
is the one that configurations use and whose value is a class without constructor arguments.

There are four kinds of instance. An engine chooses by what it needs, and is recognised by the method it has:

======================  =================================  ===========================================================
class                   its method                         runs
======================  =================================  ===========================================================
`BackendInstance`       ``execute``                        on a thread: a merged batch, arrays in and arrays out
`RequestInstance`       ``execute_requests``               on a thread: the requests of a batch, one by one
`AsyncInstance`         ``start``                          on the event loop: a merged batch, with a completion callback
`AsyncRequestInstance`  ``start_requests``                 on the event loop: the requests of a batch, one by one
======================  =================================  ===========================================================

Any exception an engine raises fails the requests at hand (or the load) with its text. Engines that know better whose
fault it was raise `modserve.ModserveError`; `InstanceLostError` says that the instance itself is gone, and is replaced.
"""

from .calls import Call, ModelCaller, OnResponse
from .instances import (
    Allocate,
    AsyncInstance,
    AsyncRequestInstance,
    BackendInstance,
    BatchDone,
    Executor,
    InstanceHandle,
    InstanceLostError,
    RequestInstance,
    RequestsDone,
    data_dependent,
    reuses_outputs,
)
from .models import Backend, BackendModel, InstanceSpec, ModelSource, Placement
from .requests import EngineRequest, Values

__all__ = [
    "Allocate",
    "AsyncInstance",
    "AsyncRequestInstance",
    "Backend",
    "BackendInstance",
    "BackendModel",
    "BatchDone",
    "Call",
    "EngineRequest",
    "Executor",
    "InstanceHandle",
    "InstanceLostError",
    "InstanceSpec",
    "ModelCaller",
    "ModelSource",
    "OnResponse",
    "Placement",
    "RequestInstance",
    "RequestsDone",
    "Values",
    "data_dependent",
    "reuses_outputs",
]
