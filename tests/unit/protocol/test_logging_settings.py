"""The logging extension on both wires."""

import json
from typing import Any

import pytest

from modserve.core.configuration.log_settings import LogFormat, LogSettings
from modserve.core.errors import Code, ModserveError
from modserve.pb import inference as pb
from modserve.protocol.control import logging_settings
from modserve.protocol.control.logging_settings import change_by_json, change_by_message

START = LogSettings(True, False, True, 7, LogFormat.DEFAULT)


def request(**settings: pb.LogSettingsRequest.SettingValue) -> pb.LogSettingsRequest:
    return pb.LogSettingsRequest(settings=settings)


def value(given: bool | int | str | None) -> pb.LogSettingsRequest.SettingValue:
    if given is None:
        return pb.LogSettingsRequest.SettingValue()
    if isinstance(given, bool):
        return pb.LogSettingsRequest.SettingValue(bool_param=given)
    if isinstance(given, int):
        return pb.LogSettingsRequest.SettingValue(uint32_param=given)
    return pb.LogSettingsRequest.SettingValue(string_param=given)


def test_json_has_triton_s_keys_in_its_order() -> None:
    assert list(logging_settings.json(START).items()) == [
        ("log_file", ""),
        ("log_info", True),
        ("log_warning", False),
        ("log_error", True),
        ("log_verbose_level", 7),
        ("log_format", "default"),
    ]


def test_the_message_says_the_same_with_types() -> None:
    settings = logging_settings.message(START).settings
    choices = {name: str(each.WhichOneof("parameter_choice")) for name, each in settings.items()}
    assert choices == {
        "log_file": "string_param",
        "log_info": "bool_param",
        "log_warning": "bool_param",
        "log_error": "bool_param",
        "log_verbose_level": "uint32_param",
        "log_format": "string_param",
    }
    assert {name: getattr(settings[name], choice) for name, choice in choices.items()} == logging_settings.json(START)


CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "unknown": ({"foo": 1}, {}),
    "info": ({"log_info": False}, {"info": False}),
    "warning": ({"log_warning": True}, {"warning": True}),
    "error": ({"log_error": False}, {"error": False}),
    "verbose": ({"log_verbose_level": 0}, {"verbose_level": 0}),
    "most verbose": ({"log_verbose_level": 2**32 - 1}, {"verbose_level": 2**32 - 1}),
    "format": ({"log_format": "ISO8601"}, {"format": LogFormat.ISO8601}),
    "several": ({"log_info": False, "log_format": "ISO8601"}, {"info": False, "format": LogFormat.ISO8601}),
}


@pytest.mark.parametrize(("given", "changes"), CHANGES.values(), ids=CHANGES)
def test_a_change(given: dict[str, Any], changes: dict[str, Any]) -> None:
    assert change_by_json(json.dumps(given).encode()) == changes
    assert change_by_message(request(**{name: value(each) for name, each in given.items()})) == changes


def test_null_changes_nothing_in_json() -> None:
    body = dict.fromkeys(logging_settings.json(START))
    assert change_by_json(json.dumps(body).encode()) == {}


NO_BOOLEAN = "attempt to access JSON non-boolean as boolean"
NO_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
NO_FILE = "log file location can not be updated through network protocol"


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        (b'{"log_file":"x"}', Code.UNSUPPORTED, NO_FILE),
        (b'{"log_info":1}', Code.INVALID_ARG, NO_BOOLEAN),
        (b'{"log_warning":"true"}', Code.INVALID_ARG, NO_BOOLEAN),
        (b'{"log_error":[]}', Code.INVALID_ARG, NO_BOOLEAN),
        (b'{"log_verbose_level":-1}', Code.INVALID_ARG, NO_UNSIGNED),
        (b'{"log_verbose_level":true}', Code.INVALID_ARG, NO_UNSIGNED),
        (b'{"log_verbose_level":1.0}', Code.INVALID_ARG, NO_UNSIGNED),
        (b'{"log_verbose_level":4294967296}', Code.INVALID_ARG, NO_UNSIGNED),
        (b'{"log_format":1}', Code.INVALID_ARG, "attempt to access JSON non-string as string"),
        (b'{"log_format":"x"}', Code.INVALID_ARG, "invalid argument for --log_format, got: x"),
        (b"[]", Code.INVALID_ARG, "attempt to access JSON non-object as object"),
        (b"", Code.INVALID_ARG, "failed to parse the request JSON buffer: The document is empty. at 0"),
    ],
)
def test_a_wrong_body(body: bytes, code: Code, text: str) -> None:
    with pytest.raises(ModserveError) as raised:
        change_by_json(body)
    assert (raised.value.code, raised.value.message) == (code, text)


@pytest.mark.parametrize(
    ("name", "given", "code", "text"),
    [
        ("log_file", "x", Code.UNSUPPORTED, NO_FILE),
        ("log_info", 1, Code.INVALID_ARG, "expect boolean for 'log_info'"),
        ("log_warning", "x", Code.INVALID_ARG, "expect boolean for 'log_warning'"),
        ("log_error", None, Code.INVALID_ARG, "expect boolean for 'log_error'"),
        ("log_verbose_level", True, Code.INVALID_ARG, "expect int32 for 'log_verbose_level'"),
        ("log_format", 1, Code.INVALID_ARG, "expect string for 'log_format'"),
        ("log_format", "x", Code.INVALID_ARG, "invalid argument for log_format, got: x"),
    ],
)
def test_a_wrong_message(name: str, given: bool | int | str | None, code: Code, text: str) -> None:
    with pytest.raises(ModserveError) as raised:
        change_by_message(request(**{name: value(given)}))
    assert (raised.value.code, raised.value.message) == (code, text)
