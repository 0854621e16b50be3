"""Long texts are cut out of JSON, and what is left says the same."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modserve.core.errors import ModserveError
from modserve.protocol.json import json_text, long_texts

LONG = "x" * long_texts.WORTHWHILE


def restored(document: bytes) -> object:
    cut = long_texts.cut(document)

    def whole(value: object) -> object:
        if isinstance(value, dict):
            return {whole(name): whole(each) for name, each in value.items()}
        if isinstance(value, list):
            return [whole(each) for each in value]
        return bytes(cut.texts[value]).decode() if isinstance(value, str) and value in cut.texts else value

    return whole(json.loads(cut.rest))


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ({"a": LONG}, 1),
        ({"a": LONG, "b": [LONG + "y", 1, "short"], LONG: 2}, 3),
        (LONG, 1),
        ({"a": LONG[1:]}, 0),
        ({"a": "\\" + LONG}, 0),
        ({"a": '"' + LONG, "b": LONG}, 1),
        ({"a": "\\", "b": LONG, "c": 'x\\\\"', "d": LONG}, 2),
        ({"a": "\\" * 70_000, "b": LONG}, 1),
        ({}, 0),
    ],
    ids=["one", "several", "nothing else", "short", "an escape", "a quote", "backslashes", "many", "none"],
)
def test_what_is_cut_out(value: object, texts: int) -> None:
    document = json.dumps(value).encode()
    assert len(long_texts.cut(document).texts) == texts
    assert restored(document) == value


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.lists(st.sampled_from(['"', "\\", "/", "ü", "twelve bytes", "a"]), max_size=4).map("".join) | st.none(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", '"', "twelve more"]), inner),
        max_leaves=8,
    ),
    st.booleans(),
)
def test_any_document_says_the_same(value: object, ascii_only: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_texts, "WORTHWHILE", 8)
        assert restored(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@pytest.mark.parametrize("end", [b"", b'{"', b'"', b'"a', b"\\", b'"\\"', b'"\\\\'])
def test_what_is_no_json_is_left(end: bytes) -> None:
    document = b'{"a": ' + end
    assert long_texts.cut(document).rest == document


@pytest.mark.parametrize(
    "document",
    ['{"a": 1, }', '{"a": "%s", }', '{"a": "%s", "b": ["%s", "%s",,]}', '{"a": ? "%s"}', '{"a": "%s'],
)
def test_mistakes_are_where_they_are(document: str) -> None:
    text = document.replace("%s", LONG).encode()
    with pytest.raises(ModserveError) as expected:
        json_text.parse_any(text)
    cut = long_texts.cut(text)
    with pytest.raises(ModserveError) as raised:
        json_text.parse_any(cut.rest, cut.origin)
    assert raised.value.message == expected.value.message


def test_quotes_without_end_are_not_gone_through() -> None:
    """The rest of a document that no client sends is left as it is."""
    document = b'["",' * 120_000 + b'"' + LONG.encode() + b'"'
    assert long_texts.cut(document).texts == {}
    document = b'"' + b'\\"' * 200_000 + LONG.encode() + b'"'
    assert long_texts.cut(document).texts == {}
