"""Metadata and configuration responses, for both wires."""

from collections.abc import Iterable, Sequence

from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.servable import Servable, engine_report
from modserve.pb import inference as pb
from modserve.pb.json_message import to_json
from modserve.protocol.json.json_text import JsonObject


def server_json(name: str, version: str, extensions: Sequence[str]) -> JsonObject:
    return to_json(server_message(name, version, extensions))


def server_message(name: str, version: str, extensions: Sequence[str]) -> pb.ServerMetadataResponse:
    return pb.ServerMetadataResponse(name=name, version=version, extensions=extensions)


def model_json(servable: Servable, versions: Iterable[int]) -> JsonObject:
    return to_json(model_message(servable, versions))


def model_message(servable: Servable, versions: Iterable[int]) -> pb.ModelMetadataResponse:
    """Return a model's metadata: shapes with the batch dimension in front, versions as strings."""
    config = servable.config
    return pb.ModelMetadataResponse(
        name=config.name,
        versions=map(str, versions),
        platform=config.served_platform,
        inputs=[_tensor(config, spec) for spec in config.inputs],
        outputs=[_tensor(config, spec) for spec in config.outputs],
    )


def config_message(servable: Servable) -> pb.ModelConfig:
    """Return the normalised configuration, as the gRPC call returns it."""
    return pb.ModelConfig.FromString(servable.config_message)


def config_json(servable: Servable) -> JsonObject:
    return to_json(config_message(servable))


def engine_json(servable: Servable) -> JsonObject:
    """Return the engine that runs a model version; for an ensemble, the models of its steps instead."""
    config = servable.config
    out: JsonObject = {"model_name": servable.id.name, "model_version": str(servable.id.version)}
    if config.ensemble is not None:
        steps = list(dict.fromkeys(step.model for step in config.ensemble.steps))
        return out | {"backend": "", "engine": "ensemble", "steps": steps}
    out |= {"backend": config.backend, "engine": config.backend}
    return out | dict(engine_report(servable))


def _tensor(config: ModelConfig, spec: TensorSpec) -> pb.ModelMetadataResponse.TensorMetadata:
    shape = config.full_dims(spec)
    return pb.ModelMetadataResponse.TensorMetadata(name=spec.name, datatype=spec.datatype.name, shape=shape)
