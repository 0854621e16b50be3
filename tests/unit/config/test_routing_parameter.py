"""The routing in a configuration."""

import pytest

from modserve.config.features import routing
from modserve.pb import inference as pb
from modserve.routing.reading import read

TEXT = '{"labels": {"canary": 2}, "split": {"1": 9, "canary": 1}}'


def message(text: str | None) -> pb.ModelConfig:
    made = pb.ModelConfig(name="m")
    if text is not None:
        made.parameters["routing"].string_value = text
    return made


def test_a_routing() -> None:
    made = message(TEXT)
    assert list(routing.validate(made)) == []
    assert routing.routing(made) == read({"labels": {"canary": 2}, "split": {"1": 9, "canary": 1}})


def test_none() -> None:
    assert list(routing.validate(message(None))) == []
    assert routing.routing(message(None)) is None


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "routing is not JSON: Expecting value: line 1 column 1 (char 0)"),
        ('{"split": {"0": 1}}', 'routing.split is "0", expected a label of routing.labels, which has none, or a vers'),
    ],
)
def test_a_mistake(text: str, fault: str) -> None:
    ((where, said),) = routing.validate(message(text))
    assert where == ("parameters", "routing")
    assert said.startswith(fault)
    assert routing.routing(message(text)) is None


def test_what_the_model_cannot_have() -> None:
    made = message('{"split": {"1": 1}, "shadow": {"version": 2, "share": 1}}')
    assert list(routing.validate(made)) == []
    made.model_transaction_policy.decoupled = True
    ((_, said),) = routing.validate(made)
    assert said.startswith("routing.shadow is not possible for a decoupled model")
