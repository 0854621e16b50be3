"""The one error type."""

import pickle
from collections.abc import Callable

import pytest

from modserve.core import errors
from modserve.core.errors import Code, ModserveError, from_exception

TEXTS = {
    Code.UNKNOWN: "Unknown",
    Code.INTERNAL: "Internal",
    Code.NOT_FOUND: "Not found",
    Code.INVALID_ARG: "Invalid argument",
    Code.UNAVAILABLE: "Unavailable",
    Code.UNSUPPORTED: "Unsupported",
    Code.ALREADY_EXISTS: "Already exists",
    Code.CANCELLED: "Cancelled",
}


def test_the_codes_are_tritons_eight() -> None:
    assert {code: code.value for code in Code} == TEXTS


@pytest.mark.parametrize(("code", "text"), list(TEXTS.items()), ids=lambda value: getattr(value, "name", value))
def test_reason_is_what_the_repository_index_shows(code: Code, text: str) -> None:
    assert ModserveError(code, "it broke").reason == f"{text}: it broke"


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (errors.invalid, Code.INVALID_ARG),
        (errors.unavailable, Code.UNAVAILABLE),
        (errors.not_found, Code.NOT_FOUND),
        (errors.unsupported, Code.UNSUPPORTED),
        (errors.internal, Code.INTERNAL),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_makers(make: Callable[[str], ModserveError], code: Code) -> None:
    error = make("text")
    assert (error.code, error.message, str(error)) == (code, "text", "text")


def test_cancelled_has_an_empty_message() -> None:
    assert (errors.cancelled().code, errors.cancelled().message) == (Code.CANCELLED, "")


def test_repr_names_code_and_message() -> None:
    assert repr(errors.invalid("a 'b'")) == "ModserveError(INVALID_ARG, \"a 'b'\")"


def test_survives_pickling() -> None:
    copy = pickle.loads(pickle.dumps(errors.not_found("gone")))
    assert type(copy) is ModserveError
    assert (copy.code, copy.message, str(copy)) == (Code.NOT_FOUND, "gone", "gone")


def test_our_errors_pass_the_border_as_they_are() -> None:
    error = errors.invalid("text")
    assert from_exception(error, "doing this") is error


@pytest.mark.parametrize(
    ("foreign", "message"),
    [
        (ValueError("bad value"), "doing this: bad value"),
        (KeyError(), "doing this: KeyError"),
        (SystemExit(), "doing this: SystemExit"),
    ],
    ids=repr,
)
def test_foreign_errors_become_internal(foreign: BaseException, message: str) -> None:
    error = from_exception(foreign, "doing this")
    assert (error.code, error.message) == (Code.INTERNAL, message)
