"""The measured model as described by its server, and its server-side statistics."""

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from modserve.commands.status_report import VersionUsage, usage
from modserve.core.errors import ModserveError, invalid
from modserve.core.tensors import dtypes
from modserve.pb import inference as pb

from ..destination import Destination
from ..errors import UnreachableError
from ..remote_server import RemoteServer
from .grpc import GrpcSlots, StreamSlot
from .http import LINES, HttpSlot, HttpSlots, HttpStreamSlot
from .inputs import GRPC_PATH, GRPC_STREAM_PATH, Inputs, TargetInput, grpc_message, http_path, http_request
from .slots import Endpoint, SlotFactory

_BINARY = "binary_tensor_data"
_IDLE_MICROSECONDS = 1_000_000
"""Default idle time-out of a sequence."""
_EMPTY_FINAL = "triton_enable_empty_final_response"


@dataclass(frozen=True, slots=True)
class TargetModel:
    """Properties of a model that determine its requests."""

    name: str
    version: int | None
    specs: tuple[TargetInput, ...]
    batches: bool
    binary: bool
    """True if HTTP supports binary tensors after the JSON."""
    decoupled: bool = False
    """True if a request may have any number of responses."""
    sequences: "SequenceTraits | None" = None
    """Traits of a sequence model; None for other models."""


class SequenceTraits(NamedTuple):
    text_ids: bool
    """True if sequence ids are strings."""
    idle_seconds: float
    """Idle time-out of a sequence on the server."""


def describe(remote: RemoteServer, model: str, version: int | None) -> TargetModel:
    """Describe a model. Raises UnreachableError, and INVALID_ARG with the server's message about an unknown model."""
    metadata = remote.metadata(model, version)
    try:
        config = remote.config(model, version)
    except UnreachableError:
        raise
    except ModserveError:  # an extension of Triton that other servers lack
        config = None
    optional = set() if config is None else {row.name for row in config.input if row.optional}
    dims = {row.name: row.shape for row in metadata.inputs}
    if config is None:
        batches = bool(dims) and all(shape[:1] == (-1,) for shape in dims.values())
    else:
        batches = config.max_batch_size > 0
    specs = []
    for row in metadata.inputs:
        datatype = dtypes.BY_NAME.get(row.datatype)
        if datatype is None:
            raise invalid(f"input '{row.name}' of model '{model}' is of type {row.datatype}, which is unknown here")
        shape = dims[row.name][1:] if batches else dims[row.name]
        specs.append(TargetInput(row.name, datatype, shape, row.name in optional))
    return TargetModel(
        model,
        version,
        tuple(specs),
        batches,
        _BINARY in remote.extensions(),
        config is not None and config.model_transaction_policy.decoupled,
        None if config is None else _sequence_traits(remote, config),
    )


def describe_all(remotes: Sequence[RemoteServer], model: str, version: int | None) -> TargetModel:
    """Describe the model on several servers, like `describe`. Also raises INVALID_ARG if its requests would differ."""
    first, *others = [describe(remote, model, version) for remote in remotes]
    for other, remote in zip(others, remotes[1:], strict=True):
        if other != first:
            raise invalid(f"model '{model}' takes other requests on {remote.url} than on {remotes[0].url}")
    return first


def _sequence_traits(remote: RemoteServer, config: pb.ModelConfig) -> SequenceTraits | None:
    """Return the traits of a sequence model; for an ensemble, the combined traits of its steps."""
    if config.HasField("ensemble_scheduling"):
        steps = {step.model_name: max(step.model_version, 0) or None for step in config.ensemble_scheduling.step}
        parts = [_sequence_traits(remote, remote.config(name, version)) for name, version in steps.items()]
        known = [part for part in parts if part is not None]
        if not known:
            return None
        return SequenceTraits(any(part.text_ids for part in known), min(part.idle_seconds for part in known))
    if not config.HasField("sequence_batching"):
        return None
    batching = config.sequence_batching
    kinds = {control.kind: control.data_type for row in batching.control_input for control in row.control}
    has_texts = kinds.get(pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID) == pb.TYPE_STRING
    return SequenceTraits(has_texts, (batching.max_sequence_idle_microseconds or _IDLE_MICROSECONDS) / 1e6)


def slot_factory(
    server: Destination, model: TargetModel, inputs: Sequence[Inputs], *, binary: bool, streaming: bool
) -> SlotFactory:
    """Return the slot factory for these inputs. Raises INVALID_ARG for inputs that cannot be sent."""
    place, access = server.address, server.access
    context = access.context() if place.secure else None
    if context is not None:
        context.set_alpn_protocols(["h2"] if place.over_grpc else ["http/1.1"])
    endpoint = Endpoint(place, context)
    name, version = model.name, model.version
    if place.over_grpc:
        parameters = {_EMPTY_FINAL: True} if model.decoupled else {}
        messages = [grpc_message(name, version, each, parameters) for each in inputs]
        metadata = list(access.metadata())
        if not (streaming or model.decoupled):
            return GrpcSlots(endpoint, GRPC_PATH, messages, metadata)
        make = functools.partial(StreamSlot, decoupled=model.decoupled)
        return GrpcSlots(endpoint, GRPC_STREAM_PATH, messages, metadata, make, share=1)
    url = http_path(place.prefix, name, version, "infer_stream" if model.decoupled else "infer")
    headers = [*access.headers.items(), *([("Accept", LINES)] if model.decoupled else [])]
    tagged = model.sequences is not None
    requests = [http_request(endpoint.authority, url, each, headers, binary=binary, tagged=tagged) for each in inputs]
    return HttpSlots(endpoint, requests, HttpStreamSlot if model.decoupled else HttpSlot)


class ServerStatistics:
    """Statistics of a model over all versions and servers. A server without statistics is not asked again."""

    def __init__(self, remotes: Sequence[RemoteServer], model: str, version: int | None) -> None:
        self._remotes, self._model, self._version = list(remotes), model, version

    async def __call__(self) -> VersionUsage | None:
        """Return the usage; None if any server lacks statistics, as the sum would be incomplete."""
        if not self._remotes:
            return None
        parts = await asyncio.gather(*(asyncio.to_thread(self._rows, remote) for remote in self._remotes))
        if not all(parts):
            self._remotes = []
            return None
        return functools.reduce(VersionUsage.plus, (row for rows in parts for row in rows))

    def _rows(self, remote: RemoteServer) -> list[VersionUsage]:
        try:
            return list(usage(remote, self._model, self._version).values())
        except ModserveError:
            return []
