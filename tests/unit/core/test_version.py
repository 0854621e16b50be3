"""Which directories are versions, which versions requests mean, and which are served."""

from collections.abc import Iterable

import pytest

from modserve.core import version
from modserve.core.errors import Code, ModserveError
from modserve.core.version import VersionPolicy, describe_unserved, not_a_version, parse_directory, parse_requested


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("1", 1),
        ("10", 10),
        ("20240131", 20240131),
        ("0", None),
        ("01", None),
        ("x", None),
        ("", None),
        ("1x", None),
        ("-1", None),
        ("+1", None),
        (" 1", None),
        ("1.0", None),
        ("1\n", None),
        ("٣", None),
        ("configs", None),
    ],
    ids=repr,
)
def test_version_directories(name: str, expected: int | None) -> None:
    assert parse_directory(name) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", None), ("1", 1), ("007", 7), ("+3", 3), (" 2", 2), ("9223372036854775807", 2**63 - 1)],
    ids=repr,
)
def test_versions_that_requests_mean(text: str, expected: int | None) -> None:
    assert parse_requested(text) == expected


@pytest.mark.parametrize(
    "text",
    ["x", "1x", "1.5", "one", " ", "-", "٣", "9223372036854775808", "99999999999999999999", "9" * 5000],
    ids=lambda text: repr(text[:25]),
)
def test_versions_that_are_no_numbers(text: str) -> None:
    with pytest.raises(ModserveError) as caught:
        parse_requested(text)
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message == (
        f"failed to get model version from specified version string '{text}' (details: stol), "
        "version should be an integral value > 0"
    )


@pytest.mark.parametrize("text", ["0", "-1", "-9223372036854775808"])
def test_versions_that_are_not_positive(text: str) -> None:
    with pytest.raises(ModserveError) as caught:
        parse_requested(text)
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message == (
        f"invalid model version specified '{text}' , version should be an integral value > 0"
    )


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (VersionPolicy(latest=1), [10]),
        (VersionPolicy(latest=2), [3, 10]),
        (VersionPolicy(latest=9), [1, 2, 3, 10]),
        (VersionPolicy(), [1, 2, 3, 10]),
        (VersionPolicy(specific=(3, 1)), [1, 3]),
        (VersionPolicy(specific=(2, 7)), [2]),
        (VersionPolicy(specific=(7,)), []),
    ],
    ids=["latest", "latest 2", "latest of more", "all", "specific", "one of two specific", "none of them"],
)
def test_policies(policy: VersionPolicy, expected: list[int]) -> None:
    assert policy.select([10, 2, 1, 3, 2]) == expected


@pytest.mark.parametrize("policy", [VersionPolicy(), VersionPolicy(latest=1), VersionPolicy(specific=(1,))])
def test_nothing_is_selected_from_nothing(policy: VersionPolicy) -> None:
    assert policy.select([]) == []


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (version.unknown_model("m"), Code.NOT_FOUND, "Request for unknown model: 'm' is not found"),
        (version.unknown_model("m", ["n", "model"]), Code.NOT_FOUND, "Request for unknown model: 'm' is not found"),
        (
            version.unknown_model("resnet5", ["bert", "resnet50"]),
            Code.NOT_FOUND,
            "Request for unknown model: 'resnet5' is not found; did you mean 'resnet50'?",
        ),
        (
            version.unknown_model("m" * 201, ["m" * 200]),
            Code.NOT_FOUND,
            f"Request for unknown model: '{'m' * 201}' is not found",
        ),
        (version.unknown_version("m", 3), Code.NOT_FOUND, "Request for unknown model: 'm' version 3 is not found"),
        (
            version.no_available_versions("m"),
            Code.NOT_FOUND,
            "Request for unknown model: 'm' has no available versions",
        ),
        (
            version.not_ready("m", 3),
            Code.UNAVAILABLE,
            "Request for unknown model: 'm' version 3 is not at ready state",
        ),
    ],
    ids=["model", "other models", "one alike", "long name", "version", "no versions", "not ready"],
)
def test_what_is_said_of_models_that_can_not_answer(error: ModserveError, code: Code, message: str) -> None:
    assert (error.code, error.message) == (code, message)


@pytest.mark.parametrize(
    ("present", "served", "text"),
    [
        ((1, 2), (1, 2), ""),
        ((1, 2), (2,), "version 1 in the model's folder is not served: version_policy selects 2;"),
        ((1, 2, 3), (), "versions 1, 2, 3 in its folder are not served: version_policy selects none;"),
        (range(1, 30), (29,), "versions 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, … in its folder are not served:"),
    ],
)
def test_what_is_said_of_versions_that_are_left_out(present: Iterable[int], served: tuple[int, ...], text: str) -> None:
    assert describe_unserved(present, served).startswith(text)
    assert bool(describe_unserved(present, served)) is bool(text)


@pytest.mark.parametrize(
    ("folder", "meant"), [("v3", "3"), ("007", "7"), ("Version_2", "2"), ("3", ""), ("assets", ""), ("1.0", "")]
)
def test_what_is_said_of_folders_that_are_no_versions(folder: str, meant: str) -> None:
    said = f"folder '{folder}' is not a version: versions are named by whole numbers, such as '{meant}'"
    assert not_a_version(folder) == (said if meant else "")
