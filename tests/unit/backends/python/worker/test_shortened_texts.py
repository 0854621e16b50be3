"""A model's texts of megabytes do not leave it whole."""

import pytest

from modserve.backends.python.worker import errors, failure, server
from modserve.backends.python.worker.errors import TritonError
from modserve.core import texts

LONG = "x" * 10**7
SHOWN = texts.message_text(LONG)


def test_workers_shorten_as_the_server_does() -> None:
    """They are programs of their own, and have no module in common."""
    assert errors.LONGEST == texts.LONGEST
    for text in ("", "a", "b" * texts.LONGEST, LONG):
        assert errors.shorten(text) == texts.message_text(text)


def test_errors() -> None:
    assert TritonError(LONG).message() == SHOWN
    assert TritonError(LONG.encode()).message() == SHOWN
    assert len(failure.of_exception(ValueError(LONG), "").message) < 5000


def test_log_lines(capsys: pytest.CaptureFixture[str]) -> None:
    server.Logger.log_error(LONG)
    assert capsys.readouterr().err == f"ERROR {SHOWN}\n"
