"""``parameters { key: "routing" }``: how requests that name no version are divided between the versions of a model."""

from modserve.core.configuration.routing_config import Routing
from modserve.core.errors import ModserveError
from modserve.pb import inference as pb
from modserve.routing import reading

from ..text.problems import Faults

_KEY = "routing"


def routing(message: pb.ModelConfig) -> Routing | None:
    """None if there is none, or it breaks a rule."""
    if _KEY not in message.parameters:
        return None
    try:
        return reading.read_text(message.parameters[_KEY].string_value)
    except ModserveError:
        return None


def validate(message: pb.ModelConfig) -> Faults:
    if _KEY not in message.parameters:
        return
    try:
        routing = reading.read_text(message.parameters[_KEY].string_value)
    except ModserveError as error:
        yield ("parameters", _KEY), error.message
        return
    decoupled = message.model_transaction_policy.decoupled
    if reason := reading.unfit(routing, decoupled=decoupled, sequences=message.HasField("sequence_batching")):
        yield ("parameters", _KEY), reason
