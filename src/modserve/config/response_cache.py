"""Which models' responses can be kept: those with one answer that depends on nothing but the request."""

from modserve.core.errors import ModserveError, invalid
from modserve.pb import inference as pb

from .problems import Problems


def validate(message: pb.ModelConfig, problems: Problems) -> None:
    """Adds every rule that is broken."""
    if not message.response_cache.enable:
        return
    if message.HasField("sequence_batching"):
        problems.add(("response_cache",), _refusal(message.name, "sequence batching scheduler"))
    if message.model_transaction_policy.decoupled:
        problems.add(("response_cache",), _refusal(message.name, "'decoupled' transaction policy"))


def decoupled_ensemble(name: str) -> ModserveError:
    """An ensemble turns out to be decoupled, by one of its models, only when it is put together."""
    return invalid(_refusal(name, "'decoupled' transaction policy"))


def _refusal(name: str, kind: str) -> str:
    return f"Response Cache does not currently support model {name} with {kind}. Please disable the response cache."
