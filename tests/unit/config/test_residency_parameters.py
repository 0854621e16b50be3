"""Parameters whose keys begin with ``residency.``."""

from pathlib import Path

import pytest

from modserve import config as model_config
from modserve.core.errors import ModserveError
from modserve.core.residency import NO_RULES, LoadMode, ResidencyRules

TENSORS = 'input { name: "I" data_type: TYPE_INT32 dims: 1 } output { name: "O" data_type: TYPE_INT32 dims: 1 }'
STEP = 'step { model_name: "a" model_version: -1 input_map { key: "I" value: "I" } output_map { key: "O" value: "O" } }'
ENSEMBLE = f'platform: "ensemble" ensemble_scheduling {{ {STEP} }}'


def draft(kind: str, **values: str) -> model_config.Draft:
    lines = [
        f'parameters {{ key: "residency.{key}" value {{ string_value: "{value}" }} }}' for key, value in values.items()
    ]
    return model_config.parse("\n".join([kind, TENSORS, *lines]), Path("m/config.pbtxt"), "m")


def test_what_they_mean() -> None:
    given = draft('backend: "identity"', load="lazy", pin="true", idle_unload_secs="600")
    model_config.check(given)
    assert given.provisional().residency == ResidencyRules(LoadMode.LAZY, True, 600 * 10**9)
    assert draft('backend: "identity"').provisional().residency == NO_RULES


@pytest.mark.parametrize(
    ("kind", "values", "text"),
    [
        ('backend: "identity"', {"load": "later"}, "parameter 'residency.load' is 'later', expected 'eager' or 'lazy'"),
        ('backend: "identity"', {"pin": "yes"}, "parameter 'residency.pin' is 'yes', expected 'true' or 'false'"),
        ('backend: "identity"', {"idle_unload_secs": "-1"}, "expected a whole number from 0 to"),
        (
            'backend: "identity"',
            {"pinned": "true"},
            "unknown parameter 'residency.pinned'; did you mean 'residency.pin'?",
        ),
        (ENSEMBLE, {"pin": "true"}, "parameter 'residency.pin' has no meaning for an ensemble, which has no memory"),
    ],
)
def test_what_is_wrong_with_them(kind: str, values: dict[str, str], text: str) -> None:
    with pytest.raises(ModserveError) as failure:
        model_config.check(draft(kind, **values))
    assert text in failure.value.message
