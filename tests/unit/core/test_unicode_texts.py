"""Texts that are no Unicode do not get further than where they come from."""

import pytest

from modserve.core.errors import Code, ModserveError, OverloadedError, from_exception, invalid
from modserve.core.texts import LONGEST, is_unicode, message_text, unicode_text

FINE = ["", "plain", "caf\xe9", "\N{SNOWMAN}", "\U0001f600", "\0\x1b[2J\x9b", "\u202e\u2028", r"\udce9"]
LONE = {
    b"caf\xe9".decode("utf-8", "surrogateescape"): r"caf\udce9",
    "a\ud800b": r"a\ud800b",
    "\udfff\U0001f600": "\\udfff\U0001f600",
    "\udc00\ud800": r"\udc00\ud800",
}


@pytest.mark.parametrize("text", FINE)
def test_characters_stay_as_they_are(text: str) -> None:
    assert is_unicode(text)
    assert unicode_text(text) == message_text(text) == text


@pytest.mark.parametrize(("text", "shown"), LONE.items(), ids=map(ascii, LONE))
def test_lone_surrogates_are_escaped(text: str, shown: str) -> None:
    assert not is_unicode(text)
    assert unicode_text(text) == message_text(text) == shown
    for error in (invalid(text), ModserveError(Code.INTERNAL, text), OverloadedError(text), invalid("x")):
        assert is_unicode(error.message)
        assert is_unicode(str(error))
    assert invalid(text).message == shown
    assert from_exception(ValueError(text), "x").message == f"x: {shown}"


def test_of_very_long_messages_the_middle_is_left_out() -> None:
    text = message_text("a" * 10**7 + "\udc80")
    assert text.startswith("aaa")
    assert text.endswith(r"aaa\udc80")
    assert " [... 10000001 characters in all ...] " in text
    assert len(text) == LONGEST + len(r"\udc80") - 1
    assert from_exception(ValueError("b" * 10**7), "x").message == f"x: {message_text('b' * 10**7)}"
    assert message_text("c" * LONGEST) == "c" * LONGEST
