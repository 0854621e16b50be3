"""Which models' responses can be kept."""

import pytest
from config_build import ONE_EACH, finish, problems

ENABLED = "response_cache { enable: true }"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"{ENABLED}\nsequence_batching {{ }}", "sequence batching scheduler"),
        (f"{ENABLED}\nmodel_transaction_policy {{ decoupled: true }}", "'decoupled' transaction policy"),
    ],
    ids=["sequences", "decoupled"],
)
def test_models_without_one_answer_of_their_own(text: str, kind: str) -> None:
    assert problems(f"{text}\n{ONE_EACH}") == [
        f"1:1: Response Cache does not currently support model foo with {kind}. Please disable the response cache."
    ]


@pytest.mark.parametrize("text", [ENABLED, "model_transaction_policy { decoupled: true }", "sequence_batching { }"])
def test_alone_they_are_fine(text: str) -> None:
    assert finish(f"{text}\n{ONE_EACH}").config.cached is (text == ENABLED)
