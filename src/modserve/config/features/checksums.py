"""``model_repository_agents``: Triton's ``checksum`` agent, which the server implements itself."""

from typing import cast

from modserve.core.files.checksums import SIZES, Checksum, relative
from modserve.pb import inference as pb

from ..text.problems import Faults

_AGENT = "checksum"


def others(agents: object) -> bool:
    """Return True if there are agents other than `checksum`."""
    return any(agent.name != _AGENT for agent in cast(pb.ModelRepositoryAgents, agents).agents)


def checksums(message: pb.ModelConfig) -> tuple[Checksum, ...]:
    """Return the valid digests."""
    return tuple(
        Checksum(key.partition(":")[0].lower(), relative(key.partition(":")[2]), value.lower())
        for agent in message.model_repository_agents.agents
        if agent.name == _AGENT
        for key, value in sorted(agent.parameters.items())
        if not _fault(key, value)
    )


def validate(message: pb.ModelConfig) -> Faults:
    for index, agent in enumerate(message.model_repository_agents.agents):
        for key, value in sorted(agent.parameters.items()) if agent.name == _AGENT else ():
            if fault := _fault(key, value):
                yield ("model_repository_agents", "agents", index, "parameters", key), fault


def _fault(key: str, value: str) -> str:
    """Return the fault of a parameter; a key looks like ``SHA256:1/model.onnx``."""
    algorithm, colon, path = key.partition(":")
    size = SIZES.get(algorithm.lower())
    if not colon or size is None:
        takes = ", ".join(name.upper() for name in SIZES)
        return f"the checksum agent has a parameter '{key}'; expected ALGORITHM:PATH with one of the algorithms {takes}"
    try:
        relative(path)
        digest = bytes.fromhex(value)
    except ValueError as error:
        wrong = (
            str(error) if "path" in str(error) else f"its value is '{value}'; expected {2 * size} hexadecimal digits"
        )
        return f"the checksum agent's parameter '{key}': {wrong}"
    if len(digest) != size:
        return f"the checksum agent's parameter '{key}' has a value of {len(value)} digits; expected {2 * size}"
    return ""
