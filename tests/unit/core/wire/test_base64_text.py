"""Base64 in the forms in which programs write it."""

import base64
import random

import pytest

from modserve.core.wire import base64_text

CONTENT = random.Random(1).randbytes(700_001)
FORMS = {
    "plain": base64.b64encode(CONTENT),
    "lines": base64.encodebytes(CONTENT),
    "lines of mail": base64.encodebytes(CONTENT).replace(b"\n", b"\r\n"),
    "for URLs": base64.urlsafe_b64encode(CONTENT),
    "without padding": base64.b64encode(CONTENT).rstrip(b"="),
    "for URLs, without padding": base64.urlsafe_b64encode(CONTENT).rstrip(b"="),
    "spaces at the ends": b"  " + base64.b64encode(CONTENT) + b"\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    text = FORMS[form]
    assert base64_text.decode(text) == CONTENT
    assert base64_text.decode(memoryview(text)) == CONTENT
    assert base64_text.decode(text.decode()) == CONTENT


@pytest.mark.parametrize("length", range(8))
def test_short_ones(length: int) -> None:
    for text in (base64.b64encode(CONTENT[:length]), base64.b64encode(CONTENT[:length]).rstrip(b"=")):
        assert base64_text.decode(text) == CONTENT[:length]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("QUJD!UJD", "byte 0x21 at position 4 is not of Base64"),
        ("QUä", "byte 0xc3 at position 2"),
        ("A" * 300_000 + "\0", "byte 0x00 at position 300000"),
        ("QQ==QQ==", "behind the padding, before position 8"),
        ("QQ=" + "\n" * 300_000 + "Q", "behind the padding, before position 300004"),
        ("QUJDQ", "it is cut: it ends with 1 of four characters and 0 of padding"),
        ("QUJD===", "ends with 0 of four characters and 3 of padding"),
        ("\ud800", "byte 0x3f"),
    ],
)
def test_what_is_none(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        base64_text.decode(text)
