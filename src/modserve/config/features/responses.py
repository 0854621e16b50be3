"""``model_transaction_policy`` and ``response_cache``: how many responses a request has, and whether they are kept."""

from dataclasses import replace

from modserve.core.errors import ModserveError, invalid
from modserve.core.model_config import ModelConfig
from modserve.pb import inference as pb

from ..text.problems import Faults
from .feature import Context, Feature


def _validate(message: pb.ModelConfig, context: Context) -> Faults:
    """Only a single response that depends on nothing but its request can be kept."""
    if message.response_cache.enable and message.HasField("sequence_batching"):
        yield ("response_cache",), _refusal(message.name, "sequence batching scheduler")
    if message.response_cache.enable and message.model_transaction_policy.decoupled:
        yield ("response_cache",), _refusal(message.name, "'decoupled' transaction policy")


def decoupled_ensemble(name: str) -> ModserveError:
    """The refusal of a cached ensemble that has a decoupled model, which is only known when it is composed."""
    return invalid(_refusal(name, "'decoupled' transaction policy"))


def _refusal(name: str, kind: str) -> str:
    return f"Response Cache does not currently support model {name} with {kind}. Please disable the response cache."


def _convert(message: pb.ModelConfig, config: ModelConfig, context: Context) -> ModelConfig:
    decoupled = message.model_transaction_policy.decoupled
    return replace(config, decoupled=decoupled, cached=message.response_cache.enable)


FEATURE = Feature(validate=_validate, convert=_convert)
