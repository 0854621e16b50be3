"""Chat templates: what they see, and what they may not do."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from modserve.core.errors import Code, ModserveError
from modserve.text.chat.errors import TemplateError
from modserve.text.chat.template import ChatTemplate, SlowTemplateError
from modserve.text.chat.template_files import read_template

USER: dict[str, Any] = {"role": "user", "content": "hi"}
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' ~ message['role'] + '\n' + message.content | trim + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def rendered(source: str, **variables: object) -> str:
    return ChatTemplate(source, "m", {"bos_token": "<s>"}).render({"messages": [USER], **variables}, 0.5)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (CHATML, "<|im_start|>user\nhi<|im_end|>\n"),
        ("{{ bos_token }}{{ messages[0].content }}", "<s>hi"),
        ("{% generation %}{{ 1 + 1 }}{% endgeneration %}", "2"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% set ns = namespace(x=0) %}{% for m in messages %}{% set ns.x = ns.x + 1 %}{% endfor %}{{ ns.x }}", "1"),
        ("{{ tools | tojson }}", '[{"name": "é <b>"}]'),
        ("{{ tools | tojson(indent=2) }}", '[\n  {\n    "name": "é <b>"\n  }\n]'),
        ("{% macro bold(x) %}*{{ x }}*{% endmacro %}{{ bold('a') ~ bold('b') }}", "*a**b*"),
        ("{{ [1, 2] | join('-') }}{{ 'abc'.replace('b', 'x') }}{{ ', '.join(['a', 'b']) }}", "1-2axca, b"),
        ("{{ messages | map(attribute='role') | list }}", "['user']"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{{ 'x' if enable_thinking is defined else 'y' }}", "y"),
        ("{{ 'a\nb' | indent(2) }}", "a\n  b"),
        ("{{ 'a\nb' | indent(2, first=true) }}", "  a\n  b"),
        ("{{ (messages + [{'role': 'x', 'content': 'y'}]) | length }}", "2"),
        ("{{ messages[0].content.split('i')[0] }}{{ messages[-1]['content'][::-1] }}", "hih"),
        ("{{ none }}{{ true }}{{ missing }}", "NoneTrue"),
        ("{{ strftime_now('%%') }}", "%"),
        ("{% if not loop %}a{% endif -%}\n b", "ab"),
    ],
)
def test_what_a_template_may(source: str, expected: str) -> None:
    assert rendered(source, tools=[{"name": "é <b>"}]) == expected


REACHES_OUT = "does what none may"
DOUBLING = "{% set ns = namespace(x='aaaaaaaaaa') %}{% for i in range(99) %}"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ ''.__class__.__mro__ }}", "__class__"),
        ("{{ cycler.__init__.__globals__ }}", "__init__"),
        ("{{ messages.append(1) }}", "append"),
        ("{{ messages[0].update({}) }}", "update"),
        ("{{ 'a' * 10**9 }}", "the operator **"),
        ("{{ 'a' * 1000000000 }}", "1000000000"),
        ("{{ [1] * 1000000000 }}", "1000000000"),
        ("{{ '%1000000000d' % 1 }}", "the operator %"),
        ("{{ '{:>1000000000}'.format(1) }}", "format"),
        ("{{ 'a'.ljust(1000000000) }}", "ljust"),
        ("{{ range(1000000000) }}", "Range too big"),
        ("{{ 'a\nb' | indent(1000000000) }}", "1000000000"),
        (DOUBLING + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}", "at most"),
        (DOUBLING + "{% set ns.x = ns.x + ns.x %}{% endfor %}", "at most"),
        (DOUBLING + "{% set ns.x = ns.x.replace('a', 'aa') %}{% endfor %}", "at most"),
        (DOUBLING + "{% set ns.x = ns.x | replace('a', 'aa') %}{% endfor %}", "at most"),
        (DOUBLING + "{% set ns.x = [ns.x, ns.x] | join %}{% endfor %}", "at most"),
        (DOUBLING + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}", "at most"),
        (DOUBLING + "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}", "at most"),
        ("{% set ns = namespace(x=3) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}", "bits"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}" + "a" * 9999 + "{% endfor %}{% endfor %}", "at most"),
    ],
)
def test_what_a_template_may_not(source: str, text: str) -> None:
    with pytest.raises(ModserveError, match="the chat template of model 'm'") as raised:
        rendered(source)
    assert text in raised.value.message or REACHES_OUT in raised.value.message
    assert raised.value.code is (Code.INVALID_ARG if "Range" in text else Code.INTERNAL)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
        "{% macro f() %}{% for i in range(99999) %}{% endfor %}{% endmacro %}{% for i in range(99999) %}{{ f() }}"
        "{% endfor %}",
        "{% for i in range(99999) %}{{ range(9999) | map('string') | list | length }}{% endfor %}",
    ],
)
def test_a_template_that_does_not_end(source: str) -> None:
    with pytest.raises(SlowTemplateError):
        ChatTemplate(source, "m").render({}, 0.05)
    assert "did not end within 2 s" in ChatTemplate(source, "m").too_slow().message


def test_a_macro_that_calls_itself() -> None:
    with pytest.raises(ModserveError, match="calls itself too often"):
        rendered("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}")


def test_what_a_template_refuses_is_the_clients_mistake_and_quotes_stay_out_of_the_log() -> None:
    with pytest.raises(TemplateError, match="refuses the messages: odd: hi") as raised:
        rendered("{{ raise_exception('odd: ' ~ messages[0].content) }}")
    assert raised.value.code is Code.INVALID_ARG
    assert raised.value.summary == "the chat template of model 'm' refuses the messages"
    with pytest.raises(TemplateError, match="fails on these messages: UndefinedError: 'x' is undefined"):
        rendered("{{ x.y }}")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for", "unexpected 'end of template', line 1"),
        ("{{ 'x' | urlize }}", "No filter named 'urlize'"),
        ("{% include 'x' %}", "no loader"),
        ("x" * 2_000_000, "2000000 characters"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "nested"),
    ],
)
def test_what_is_no_template(source: str, text: str) -> None:
    with pytest.raises(ModserveError, match=text):
        rendered(source)


@pytest.mark.parametrize(("source", "takes"), [("{{ tools }}", True), ("{{ messages }}", False)])
def test_whether_it_has_a_place_for_tools(source: str, takes: bool) -> None:
    assert ChatTemplate(source, "m").takes_tools is takes


def write(folder: Path, template: object = None, file: str | None = None, **tokens: object) -> Path:
    folder.mkdir(parents=True)
    config = {"chat_template": template, **tokens}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if file is not None:
        (folder / "chat_template.jinja").write_text(file)
    return folder


def prompt(folder: Path | None, **parameters: str) -> str | None:
    template = read_template("m", parameters, folder)
    return None if template is None else template.render({"messages": [USER]})


def test_files(tmp_path: Path) -> None:
    assert prompt(None) is None
    assert prompt(write(tmp_path / "none" / "1")) is None
    config = write(tmp_path / "a" / "1", "{{ bos_token }}!", bos_token="<s>")
    assert prompt(config) == "<s>!"
    assert prompt(write(tmp_path / "b" / "1", "no", "{{ bos_token }}?", bos_token={"content": "<o>"})) == "<o>?"
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert prompt(write(tmp_path / "c" / "1", named)) == "d"
    assert prompt(config, chat_template="{{ bos_token }}p", bos_token="<p>") == "<p>p"
    beside = write(tmp_path / "d", "of the model")
    (beside / "1").mkdir()
    assert prompt(beside / "1") == "of the model"


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("tokenizer_config.json", b"{", "tokenizer_config.json of model 'm' is no JSON"),
        ("tokenizer_config.json", b"\xff", "tokenizer_config.json of model 'm' cannot be read"),
        ("chat_template.jinja", b"\xff", "chat_template.jinja of model 'm' cannot be read"),
        ("chat_template.jinja", b"x" * 2_000_000, "chat_template.jinja of model 'm' is longer than 1048576 bytes"),
        ("chat_template.jinja", b"{% for", "cannot be used"),
    ],
)
def test_broken_files(tmp_path: Path, name: str, content: bytes, text: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModserveError, match=text) as raised:
        read_template("m", {}, tmp_path)
    assert raised.value.code is Code.INTERNAL


def test_without_jinja2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "modserve.text.chat.template")
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert read_template("m", {}, tmp_path) is None
    with pytest.raises(ModserveError, match=r"chat templates need Jinja2: pip install 'modserve\[text\]'") as raised:
        read_template("m", {"chat_template": "{{ 1 }}"}, tmp_path)
    assert raised.value.code is Code.UNSUPPORTED
