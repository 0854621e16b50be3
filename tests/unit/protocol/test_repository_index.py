"""The model repository extension on both wires."""

import base64
import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from modserve.core.errors import Code, ModserveError
from modserve.core.lifecycle import IndexEntry, LifecycleState
from modserve.pb import inference as pb
from modserve.protocol.control import repository
from modserve.protocol.json import json_text

ENTRIES = [
    IndexEntry("a", 1, LifecycleState.READY, "", 5),
    IndexEntry("a", 12, LifecycleState.UNAVAILABLE, "unloaded"),
    IndexEntry("b", None, LifecycleState.UNAVAILABLE, "Internal: no good"),
    IndexEntry("c", None, LifecycleState.UNKNOWN, ""),
]


def test_the_index_as_json_leaves_out_what_is_empty() -> None:
    assert repository.index_json(ENTRIES) == [
        {"name": "a", "version": "1", "state": "READY"},
        {"name": "a", "version": "12", "state": "UNAVAILABLE", "reason": "unloaded"},
        {"name": "b", "state": "UNAVAILABLE", "reason": "Internal: no good"},
        {"name": "c"},
    ]


def test_the_index_as_a_message() -> None:
    index = pb.RepositoryIndexResponse.ModelIndex
    assert list(repository.index_message(ENTRIES).models) == [
        index(name="a", version="1", state="READY"),
        index(name="a", version="12", state="UNAVAILABLE", reason="unloaded"),
        index(name="b", state="UNAVAILABLE", reason="Internal: no good"),
        index(name="c"),
    ]


def test_an_empty_index() -> None:
    assert repository.index_json([]) == []
    assert repository.index_message([]) == pb.RepositoryIndexResponse()


@pytest.mark.parametrize(
    ("body", "ready"),
    [(b"", False), (b"{}", False), (b'{"ready":true}', True), (b'{"ready":false}', False), (b'{"foo":1}', False)],
)
def test_what_an_index_request_asks_for(body: bytes, ready: bool) -> None:
    assert repository.only_ready(body) is ready


NO_BOOLEAN = "Invalid value for 'ready': expected a boolean"
NO_OBJECT = "attempt to access JSON non-object as object"
NO_PARAMETERS = f"Unable to parse 'parameters': {NO_OBJECT}"
NO_STRING = "invalid value for load parameter '{}': attempt to access JSON non-string as string"
UNKNOWN = "unrecognized load parameter 'foo'."
SYNTAX = "failed to parse the request JSON buffer: "


@pytest.mark.parametrize(
    ("check", "body", "text"),
    [
        (repository.only_ready, b'{"ready":1}', NO_BOOLEAN),
        (repository.only_ready, b'{"ready":"true"}', NO_BOOLEAN),
        (repository.only_ready, b'{"ready":null}', NO_BOOLEAN),
        (repository.only_ready, b"[]", NO_OBJECT),
        (repository.only_ready, b"{", SYNTAX),
        (repository.only_ready, b"\xff", SYNTAX),
        (repository.load_json, b"{", SYNTAX),
        (repository.load_json, b'"x"', NO_OBJECT),
        (repository.load_json, b'{"parameters":[]}', NO_PARAMETERS),
        (repository.load_json, b'{"parameters":{"config":{}}}', NO_STRING.format("config")),
        (repository.load_json, b'{"parameters":{"file:1/x":1}}', NO_STRING.format("file:1/x")),
        (repository.load_json, b'{"parameters":{"foo":"x"}}', UNKNOWN),
        (repository.load_json, b'{"parameters":{"foo":1}}', UNKNOWN),
        (repository.load_json, b'{"parameters":{"file:":"x"}}', "unrecognized load parameter 'file:'."),
        (
            repository.load_json,
            b'{"parameters":{"file:1/x":"A"}}',
            "invalid value for load parameter 'file:1/x', expected base64: it is cut: it ends with 1 of four "
            "characters and 0 of padding",
        ),
        (repository.unload_dependents_json, b"{", SYNTAX),
        (repository.unload_dependents_json, b'{"parameters":1}', NO_PARAMETERS),
        (
            repository.unload_dependents_json,
            b'{"parameters":{"unload_dependents":1}}',
            "invalid value for unload parameter 'unload_dependents': attempt to access JSON non-boolean as boolean",
        ),
    ],
)
def test_a_wrong_body(check: Any, body: bytes, text: str) -> None:
    with pytest.raises(ModserveError) as raised:
        check(body)
    assert raised.value.code is Code.INVALID_ARG
    assert raised.value.message.startswith(text)
    assert text == SYNTAX or raised.value.message == text


LONG = 3 * 256 * 1024 + 5
"""Bytes of a file that is decoded in pieces."""


def body_of(**files: str) -> bytes:
    parameters = {"config": '{"name": "x"}', **{f"file:1/{name}": text for name, text in files.items()}}
    return json.dumps({"parameters": parameters}).encode()


@pytest.mark.parametrize("more", range(4))
def test_long_files_are_decoded_in_pieces(more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever reads much in one go keeps the event loop waiting, on whichever thread."""
    content = os.urandom(LONG + more)
    parsed, decoded = list[int](), list[int]()
    parse, decode = json_text.parse_any, base64.b64decode

    def parse_and_count(text: bytes, origin: Callable[[int], int]) -> object:
        parsed.append(len(text))
        return parse(text, origin)

    def decode_and_count(text: bytes) -> bytes:
        decoded.append(len(text))
        return decode(text)

    monkeypatch.setattr(json_text, "parse_any", parse_and_count)
    monkeypatch.setattr(base64, "b64decode", decode_and_count)
    parameters = repository.load_json(body_of(long=base64.b64encode(content).decode(), short="QUJD"))
    assert parameters == repository.LoadParameters('{"name": "x"}', {"1/long": content, "1/short": b"ABC"})
    assert max(parsed) < 1000
    assert max(decoded) < 2 * 256 * 1024


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("A" * LONG + "?", f"byte 0x3f at position {LONG} is not of Base64"),
        ("?" + "A" * LONG, "byte 0x3f at position 0 is not of Base64"),
        ("A" * (256 * 1024 - 2) + "==" + "A" * LONG, "there is text behind the padding, before position 524288"),
        ("A" * (LONG // 4 * 4 + 1), "it is cut"),
        ("A" * LONG + "\n", "failed to parse the request JSON buffer"),
    ],
)
def test_long_files_that_are_no_base64(text: str, fault: str) -> None:
    with pytest.raises(ModserveError) as raised:
        repository.load_json(b'{"parameters":{"file:1/x":"%b"}}' % text.encode())
    assert raised.value.code is Code.INVALID_ARG
    assert fault in raised.value.message


def test_files_in_lines() -> None:
    content = os.urandom(LONG)
    for text in (base64.encodebytes(content).decode(), base64.urlsafe_b64encode(content).decode().rstrip("=")):
        assert repository.load_json(body_of(long=text)).files == {"1/long": content}


def test_long_texts_that_are_no_files() -> None:
    long = "x" * LONG
    document = {"parameters": {"config": long, "file:1/x": "QUJD" * LONG}, "more": long}
    parameters = repository.load_json(json.dumps(document).encode())
    assert parameters == repository.LoadParameters(long, {"1/x": b"ABC" * LONG})
    with pytest.raises(ModserveError, match="unrecognized load parameter 'xxx"):
        repository.load_json(json.dumps({"parameters": {long: "x"}}).encode())


NOTHING = repository.LoadParameters()
BOTH = repository.LoadParameters("{}", {"1/x": b"\0"})


@pytest.mark.parametrize(
    ("body", "parameters"),
    [
        (b"", NOTHING),
        (b"{}", NOTHING),
        (b'{"parameters":{}}', NOTHING),
        (b'{"parameters":{"config":"{}","file:1/x":"AA=="}}', BOTH),
        (b'{"parameters":{"file:1/x":""}}', repository.LoadParameters(None, {"1/x": b""})),
        (b'{"parameters":{"config":""}}', repository.LoadParameters("")),
    ],
)
def test_a_good_load_body(body: bytes, parameters: repository.LoadParameters) -> None:
    assert repository.load_json(body) == parameters


@pytest.mark.parametrize(
    ("body", "dependents"),
    [
        (b"", False),
        (b"{}", False),
        (b'{"parameters":{"unload_dependents":true}}', True),
        (b'{"parameters":{"unload_dependents":false}}', False),
        (b'{"parameters":{"x":1}}', False),
    ],
)
def test_a_good_unload_body(body: bytes, dependents: bool) -> None:
    assert repository.unload_dependents_json(body) is dependents


Parameter = pb.ModelRepositoryParameter


def test_good_parameters_of_messages() -> None:
    given = {"config": Parameter(string_param="{}"), "file:1/x": Parameter(bytes_param=b"\0")}
    assert repository.load_message(given) == BOTH
    assert repository.load_message({}) == NOTHING
    unload = repository.unload_dependents_message
    assert unload({"unload_dependents": Parameter(bool_param=True)}) is True
    assert unload({"unload_dependents": Parameter(bool_param=False), "x": Parameter()}) is False
    assert unload({}) is False


@pytest.mark.parametrize(
    ("check", "name", "value", "text"),
    [
        (
            repository.load_message,
            "config",
            Parameter(bytes_param=b"{}"),
            "invalid value type for load parameter 'config', expected string_param.",
        ),
        (
            repository.load_message,
            "file:1/x",
            Parameter(string_param="x"),
            "invalid value type for load parameter 'file:1/x', expected bytes_param.",
        ),
        (repository.load_message, "foo", Parameter(string_param="x"), UNKNOWN),
        (
            repository.unload_dependents_message,
            "unload_dependents",
            Parameter(int64_param=1),
            "invalid value type for 'unload_dependents' parameter, expected bool_param.",
        ),
    ],
    ids=["config", "file", "unknown", "dependents"],
)
def test_a_wrong_parameter_of_a_message(check: Any, name: str, value: Any, text: str) -> None:
    with pytest.raises(ModserveError) as raised:
        check({name: value})
    assert (raised.value.code, raised.value.message) == (Code.INVALID_ARG, text)


def test_a_repository_name_is_not_supported() -> None:
    repository.check_repository_name("")
    with pytest.raises(ModserveError) as raised:
        repository.check_repository_name("a")
    assert (raised.value.code, raised.value.message) == (
        Code.UNSUPPORTED,
        "'repository_name' specification is not supported",
    )
