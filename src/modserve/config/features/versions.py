"""``version_policy``."""

from dataclasses import replace

from modserve.core.model_config import ModelConfig
from modserve.core.version import VersionPolicy
from modserve.pb import inference as pb

from ..text.problems import Faults, FieldPath, Problems
from .feature import Context, Feature


def _normalise(message: pb.ModelConfig, context: Context, problems: Problems) -> None:
    if not message.HasField("version_policy"):
        message.version_policy.latest.num_versions = 1


def _validate(message: pb.ModelConfig, context: Context) -> Faults:
    policy = message.version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "latest" and policy.latest.num_versions == 0:
        yield ("version_policy", "latest", "num_versions"), "version policy 'latest' must have 'num_versions' > 0"
    if choice == "specific":
        path: FieldPath = ("version_policy", "specific", "versions")
        if not policy.specific.versions:
            yield path, "version policy 'specific' must list one or more 'versions'"
        for index, version in enumerate(policy.specific.versions):
            if version <= 0:
                yield (*path, index), f"version policy 'specific' lists {version}, versions are integers > 0"


def _convert(message: pb.ModelConfig, config: ModelConfig, context: Context) -> ModelConfig:
    """Like Triton, takes a policy without a choice for all versions."""
    policy = message.version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "latest" or not message.HasField("version_policy"):
        return replace(config, version_policy=VersionPolicy(latest=max(1, policy.latest.num_versions)))
    versions = tuple(policy.specific.versions) if choice == "specific" else ()
    return replace(config, version_policy=VersionPolicy(specific=versions))


FEATURE = Feature(normalise=_normalise, validate=_validate, convert=_convert)
