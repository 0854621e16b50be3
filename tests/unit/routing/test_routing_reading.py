"""What a routing may say, and what is said of mistakes."""

from typing import Any

import pytest

from modserve.core.configuration.routing_config import Rollback, Shadow
from modserve.core.errors import Code, ModserveError
from modserve.routing.reading import read, read_text, unfit

LABELS = {"stable": 1, "canary": 2}
SPLIT = {"stable": 90, "canary": 10}


def test_a_whole_routing() -> None:
    document = {
        "labels": {**LABELS, "next": 3},
        "split": SPLIT,
        "sticky": "header:X-User",
        "shadow": {"version": "next", "share": 0.1, "tolerance": 0.001},
        "rollback": {"version": "canary", "error_share": 0.05, "p95_ms": 1.5, "last_seconds": 60},
    }
    routing = read(document)
    assert routing.labels == {"stable": 1, "canary": 2, "next": 3}
    assert routing.split == {"stable": 90.0, "canary": 10.0}
    assert routing.sticky == "header:x-user"
    assert routing.shadow == Shadow("next", 0.1, 0.001, 8)
    assert routing.rollback == Rollback("canary", "stable", 0.05, 1_500_000, 0.0, 200, 60_000_000_000, 20)
    assert routing.document == document
    assert [routing.version(route) for route in ("stable", "next", "7")] == [1, 3, 7]


def test_the_baseline_is_the_heaviest_of_the_others() -> None:
    rollback = read({"split": {"1": 1, "2": 5, "3": 9}, "rollback": {"version": 3, "p95_ratio": 2}}).rollback
    assert rollback is not None
    assert (rollback.route, rollback.baseline) == ("3", "2")


@pytest.mark.parametrize(
    ("text", "name"),
    [("sequence", "sequence_id"), ("parameter:user", "user"), ("header:A-b", "header:a-b"), ("", "")],
)
def test_sticky(text: str, name: str) -> None:
    assert read({"sticky": text}).sticky == name


TWO = {"labels": LABELS, "split": SPLIT}
ROLLBACK = {"version": "canary", "error_share": 0.1}
MISTAKES: dict[str, tuple[Any, str]] = {
    "no object": ([], "routing is [], expected a JSON object"),
    "unknown": (
        {"weights": 1},
        "routing has the unknown member 'weights', known are: labels, split, sticky, shadow, rollback, allow_missing",
    ),
    "labels": ({"labels": 1}, "routing.labels is 1, expected a JSON object"),
    "label": (
        {"labels": {"2nd": 1}},
        "routing.labels has the label '2nd', expected a lower-case letter and then at most 63 lower-case letters, "
        "digits, '_' and '-'",
    ),
    "label's version": ({"labels": {"a": "1"}}, 'routing.labels.a is "1", expected a version, such as 2'),
    "label's boolean": ({"labels": {"a": True}}, "routing.labels.a is true, expected a version, such as 2"),
    "unlabelled": (
        {"labels": LABELS, "split": {"beta": 1}},
        'routing.split is "beta", expected a label (stable, canary) or a version such as 2',
    ),
    "no labels": (
        {"split": {"beta": 1}},
        'routing.split is "beta", expected a label of routing.labels, which has none, or a version such as 2',
    ),
    "weight": ({"split": {"1": -1}}, "routing.split.1 is -1, expected a number from 0 to 1e+09"),
    "huge weight": (
        {"split": {"1": 10**400}},
        f"routing.split.1 is 1{'0' * 99}…, expected a number from 0 to 1e+09",
    ),
    "text": ({"split": {"1": "1"}}, 'routing.split.1 is "1", expected a number from 0 to 1e+09'),
    "nothing": ({"split": {"1": 0}}, "routing.split has no weight above 0, so that no version would take a request"),
    "twice": (
        {"labels": LABELS, "split": {"canary": 1, "2": 1}},
        "routing.split has 'canary' and '2', which are both version 2",
    ),
    "sticky": (
        {"sticky": "cookie:a"},
        "routing.sticky is \"cookie:a\", expected 'sequence', 'header:<name>' or 'parameter:<name>'",
    ),
    "shadow without a share": ({**TWO, "shadow": {"version": 3}}, "routing.shadow lacks 'share'"),
    "shadow without a split": (
        {"shadow": {"version": 3, "share": 1}},
        "routing.shadow needs a routing.split, which selects the version that responds to clients",
    ),
    "shadow in the split": (
        {**TWO, "shadow": {"version": 2, "share": 1}},
        "routing.shadow.version is 2, to which routing.split gives a weight: copies would delay the "
        "requests of clients. Leave it out of the split, or give it a weight of 0",
    ),
    "no share": (
        {**TWO, "shadow": {"version": 3, "share": 0}},
        "routing.shadow.share is 0, expected a number above 0 and at most 1",
    ),
    "share": (
        {**TWO, "shadow": {"version": 3, "share": 2}},
        "routing.shadow.share is 2, expected a number from 0 to 1",
    ),
    "copies": (
        {**TWO, "shadow": {"version": 3, "share": 1, "max_in_flight": 0}},
        "routing.shadow.max_in_flight is 0, expected a whole number from 1 to 1000",
    ),
    "rollback without a split": (
        {"rollback": ROLLBACK},
        'routing.rollback.version is "canary", expected a route of routing.split: none, since there is no split',
    ),
    "rollback alone": (
        {"split": {"1": 1, "2": 0}, "rollback": {"version": 1, "error_share": 0.1}},
        "routing.rollback needs another version with a weight in routing.split to take over the requests",
    ),
    "no limit": (
        {**TWO, "rollback": {"version": "canary"}},
        "routing.rollback has no limit, expected one at least of: error_share, p95_ms, p95_ratio",
    ),
    "limit": (
        {**TWO, "rollback": {"version": "canary", "error_share": 0}},
        "routing.rollback.error_share is 0, expected a number above 0 and at most 1",
    ),
    "baseline": (
        {**TWO, "rollback": {**ROLLBACK, "baseline": "canary"}},
        "routing.rollback.baseline is 'canary' itself, expected another route of routing.split",
    ),
    "least": (
        {**TWO, "rollback": {**ROLLBACK, "last_requests": 5, "least_requests": 6}},
        "routing.rollback.least_requests is 6, which is more than last_requests, 5",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_refused_with_their_place(case: str) -> None:
    document, text = MISTAKES[case]
    with pytest.raises(ModserveError) as caught:
        read(document)
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, text)


@pytest.mark.parametrize("text", ["", "{", "{'a': 1}", "[" * 100_000])
def test_texts_that_are_not_json(text: str) -> None:
    with pytest.raises(ModserveError, match="routing is not JSON: "):
        read_text(text)


def test_numbers_that_json_does_not_have() -> None:
    with pytest.raises(ModserveError, match=r"routing\.split\.1 is NaN, expected a number"):
        read_text('{"split": {"1": NaN}}')


def test_what_a_model_cannot_have() -> None:
    shadow = read({**TWO, "shadow": {"version": 3, "share": 1}})
    assert unfit(shadow, decoupled=True, sequences=False).startswith("routing.shadow is not possible for a decoupled")
    assert unfit(shadow, decoupled=False, sequences=True).startswith(
        "routing.shadow is not possible for a model with s"
    )
    assert unfit(shadow, decoupled=False, sequences=False) == ""
    assert unfit(read(TWO), decoupled=True, sequences=True) == ""
