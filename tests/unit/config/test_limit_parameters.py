"""Parameters whose keys begin with ``limits.``."""

from pathlib import Path

import pytest
from test_residency_parameters import ENSEMBLE, TENSORS

from modserve import config as model_config
from modserve.core.configuration.model_config import ModelLimits
from modserve.core.errors import ModserveError


def draft(kind: str, **values: str) -> model_config.Draft:
    lines = [
        f'parameters {{ key: "limits.{key}" value {{ string_value: "{value}" }} }}' for key, value in values.items()
    ]
    return model_config.parse("\n".join([kind, TENSORS, *lines]), Path("m/config.pbtxt"), "m")


def test_what_they_mean() -> None:
    limited = draft('backend: "identity"', max_accepted_requests="5", execution_timeout_ms="250")
    model_config.check(limited)
    assert limited.provisional().limits == ModelLimits(5, 250_000_000)
    assert draft('backend: "identity"', execution_timeout_ms="0").provisional().limits == ModelLimits(0, 0)
    assert draft('backend: "identity"').provisional().limits == ModelLimits(0, None)


@pytest.mark.parametrize(
    ("kind", "values", "text"),
    [
        (
            'backend: "identity"',
            {"execution_timeout_ms": "1 s"},
            "parameter 'limits.execution_timeout_ms' is '1 s', expected a whole number from 0 to",
        ),
        (
            'backend: "identity"',
            {"max_accepted": "1"},
            "unknown parameter 'limits.max_accepted'; did you mean 'limits.max_accepted_requests'?",
        ),
        (
            ENSEMBLE,
            {"max_accepted_requests": "1"},
            "parameter 'limits.max_accepted_requests' has no meaning for an ensemble: set it for the models of its",
        ),
    ],
)
def test_what_is_wrong_with_them(kind: str, values: dict[str, str], text: str) -> None:
    with pytest.raises(ModserveError) as failure:
        model_config.check(draft(kind, **values))
    assert text in failure.value.message
