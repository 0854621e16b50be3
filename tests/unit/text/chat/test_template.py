"""Chat templates: what they see, and what they may not do."""

import asyncio
import json
import os
import re
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from modserve.core.errors import Code, ModserveError
from modserve.core.pip_command import pip_install
from modserve.text.chat import template as templates
from modserve.text.chat.errors import TemplateError
from modserve.text.chat.template import ChatTemplate, read_template

USER: dict[str, Any] = {"role": "user", "content": "hi"}
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' ~ message['role'] + '\n' + message.content | trim + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


async def rendered_by(template: ChatTemplate, **variables: object) -> str:
    await template.compile()
    return await template.render(json.dumps({"messages": [USER], **variables}).encode())


async def rendered(source: str, **variables: object) -> str:
    return await rendered_by(ChatTemplate(source, "m", {"bos_token": "<s>"}), **variables)


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
async def test_what_a_template_may(source: str, expected: str) -> None:
    assert await rendered(source, tools=[{"name": "é <b>"}]) == expected


DOUBLING = "{% set ns = namespace(x='aaaaaaaaaa') %}{% for i in range(99) %}"
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
REACH, LONG, MEMORY, TIME = (
    "does what none may",
    "makes a text of more than 16 MiB",
    "needs more than 512 MiB of memory",
    "did not end within 0.2 s of CPU time",
)

EITHER = f"{MEMORY}|{TIME}"
"""The memory is touched, which takes time."""

HOSTILE = [
    ("{{ ''.__class__.__mro__ }}", REACH),
    ("{{ cycler.__init__.__globals__ }}", REACH),
    ("{{ messages.append(1) }}", REACH),
    ("{{ messages[0].update({}) }}", REACH),
    ("{{ messages[0].content * 9000000 }}", LONG),
    ("{{ messages[0].content.replace('hi', 'é') * 9000000 }}", LONG),
    ("{{ 'a' * 10**9 }}", MEMORY),
    ("{{ 'a' * 10**18 }}", MEMORY),
    ("{{ [1] * 10**9 }}", MEMORY),
    ("{{ '%1000000000d' % 1 }}", MEMORY),
    ("{{ '{:>1000000000}'.format(1) }}", MEMORY),
    ("{{ 'a'.ljust(1000000000) }}", MEMORY),
    ("{{ 'a' | center(1000000000) }}", MEMORY),
    ("{{ ('\t' * 1000).expandtabs(1000000) }}", MEMORY),
    ("{{ ('a' * 1000).translate({97: 'b' * 10000000}) }}", EITHER),
    ("{{ ('a' * 10000).replace('a', 'b' * 10000000) }}", EITHER),
    ("{{ ('b' * 10000000).join('a' * 10000) }}", EITHER),
    ("{{ 'a\nb' | indent(1000000000) }}", MEMORY),
    (DOUBLING + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}", EITHER),
    (DOUBLING + "{% set ns.x = ns.x + ns.x %}{% endfor %}", EITHER),
    (DOUBLING + "{% set ns.x = ns.x | replace('a', 'aa') %}{% endfor %}", EITHER),
    (DOUBLING + "{% set ns.x = [ns.x, ns.x] | join %}{% endfor %}", EITHER),
    (DOUBLING + "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}", EITHER),
    ("{% for i in range(99999) %}{% for j in range(99999) %}" + "a" * 99999 + "{% endfor %}{% endfor %}", EITHER),
    (DOUBLING + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}", EITHER),
    ("{% set ns = namespace(x=3) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}", TIME),
    ("{{ 10 ** (10 ** 9) }}", TIME),
    ("{{ range(99999) | map('string') | map('length') | sum ** 9999999 % 7 }}", TIME),
    (ENDLESS, TIME),
    ("{% set __tick = dict %}" + ENDLESS, TIME),
    ("{% for __tick in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", TIME),
    ("{% for i in range(63) %}{{ (range(99999) | list) == (range(99999) | list | sort) }}{% endfor %}" * 99, TIME),
    ("{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}", TIME),
    ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself too often"),
    (
        "{% macro f(n) %}{% if n %}{% set a = f(n - 1) %}{% set b = f(n - 1) %}{% endif %}{% endmacro %}{{ f(60) }}",
        TIME,
    ),
]


@pytest.mark.parametrize(("source", "text"), HOSTILE)
async def test_what_a_template_may_not(source: str, text: str) -> None:
    template = ChatTemplate(source, "m", seconds=0.2 if TIME in text else 2)
    with pytest.raises(ModserveError, match="the chat template of model 'm' ") as raised:
        await rendered_by(template)
    assert raised.value.code is Code.INTERNAL
    assert re.search(text, raised.value.message)


async def test_what_no_clock_of_ours_bounds_ends_and_others_are_served() -> None:
    """One template never ends, the other is another model's."""
    endless, good = ChatTemplate(ENDLESS, "bad"), ChatTemplate(CHATML, "good")
    await asyncio.gather(endless.compile(), good.compile())
    failing = asyncio.ensure_future(endless.render(b"{}"))
    for _ in range(50):
        assert "hi" in await rendered_by(good)
    assert not failing.done()
    with pytest.raises(ModserveError, match="'bad' did not end within 2 s of CPU time"):
        await failing


async def test_a_template_that_failed_goes_on_with_the_next_conversation() -> None:
    template = ChatTemplate("{% if tools %}" + ENDLESS + "{% endif %}{{ messages[0].content }}", "m", seconds=0.2)
    assert await rendered_by(template) == "hi"
    slow = [asyncio.ensure_future(rendered_by(template, tools=[1])) for _ in range(2)]
    texts = [asyncio.ensure_future(rendered_by(template)) for _ in range(3)]
    for each in slow:
        with pytest.raises(ModserveError, match=TIME):
            await each
    assert [await each for each in texts] == ["hi"] * 3


async def test_a_caller_that_leaves_takes_no_other_ones_answer() -> None:
    template = ChatTemplate("{% for i in range(20000) %}{% endfor %}{{ messages[0].content }}", "m")
    await template.compile()
    variables = [json.dumps({"messages": [{"content": str(number)}]}).encode() for number in range(9)]
    calls = [asyncio.ensure_future(template.render(each)) for each in variables]
    await asyncio.sleep(0)
    for each in calls[::2]:
        each.cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [each for each in results if isinstance(each, str)] == ["1", "3", "5", "7"]
    assert all(isinstance(each, asyncio.CancelledError) for each in results[::2])


def children() -> list[int]:
    path = f"/proc/self/task/{os.getpid()}/children"
    return [int(each) for each in Path(path).read_text().split()]


async def test_a_process_that_was_killed_is_replaced_and_ends_with_its_template() -> None:
    before = set(children())
    template = ChatTemplate(CHATML, "m")
    assert "hi" in await rendered_by(template)
    for _ in range(3):
        (pid,) = set(children()) - before
        os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert "hi" in await rendered_by(template)
    stuck = ChatTemplate("{% if tools %}" + ENDLESS + "{% endif %}", "stuck", seconds=60)
    others = set(children())
    await stuck.compile()
    (pid,) = set(children()) - others
    lost = asyncio.ensure_future(rendered_by(stuck, tools=[1]))
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ModserveError, match="'stuck' lost its process, which ended with signal 9") as raised:
        await lost
    assert raised.value.code is Code.INTERNAL
    del template, stuck, lost, raised
    assert set(children()) == before


async def test_a_process_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ModserveError, match="has no process: '/nowhere/python' cannot be run: No such file"):
        await rendered(CHATML)


async def test_a_program_that_fails_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("raise SystemExit(7)")
    monkeypatch.setattr(templates, "_PROGRAM", program)
    with pytest.raises(ModserveError, match="cannot be used: it lost its process, which ended with status 7"):
        await rendered(CHATML)


async def test_what_a_template_refuses_is_the_clients_mistake_and_quotes_stay_out_of_the_log() -> None:
    with pytest.raises(TemplateError, match="refuses the messages: odd: hi") as raised:
        await rendered("{{ raise_exception('odd: ' ~ messages[0].content) }}")
    assert raised.value.code is Code.INVALID_ARG
    assert raised.value.summary == "the chat template of model 'm' refuses the messages"
    with pytest.raises(TemplateError, match="fails on these messages: UndefinedError: 'x' is undefined"):
        await rendered("{{ x.y }}")
    with pytest.raises(TemplateError, match="fails on these messages: OverflowError: Range too big"):
        await rendered("{{ range(1000000000) }}")
    with pytest.raises(TemplateError, match="fails on these messages: UnicodeEncodeError"):
        await rendered("{{ '\\ud800' }}")
    with pytest.raises(TemplateError, match=r"refuses the messages: \\ud800"):
        await rendered("{{ raise_exception('\\ud800') }}")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for", "unexpected 'end of template', line 1"),
        ("{{ 'x' | shout }}", "No filter named 'shout'"),
        ("x" * 2_000_000, "2000000 characters"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "nested"),
        ("{% if a %}" * 5000 + "{% endif %}" * 5000, "nested"),
        ("{{ " + "-" * 100000 + "1 }}", "nested"),
        ("{{ 1 " + "+ 1 " * 100000 + "}}", "nested|did not end"),
        ("{{ 10 ** (10 ** 9) }}", "it did not end within 0.2 s of CPU time"),
        ("{{ a }}" * 140000, "it did not end within 0.2 s of CPU time"),
    ],
)
async def test_what_is_no_template(source: str, text: str) -> None:
    template = ChatTemplate(source, "m", seconds=0.2 if TIME in text else 2) if len(source) < 1 << 20 else None
    before = children()
    for _ in range(2):  # the second time without another process
        with pytest.raises(ModserveError, match=text) as raised:
            await (rendered(source) if template is None else template.compile())
        assert raised.value.code is Code.INTERNAL
    assert set(children()) <= set(before)  # those of earlier tests may end meanwhile


@pytest.mark.parametrize(("source", "takes"), [("{{ tools }}", True), ("{{ messages }}", False)])
async def test_whether_it_has_a_place_for_tools(source: str, takes: bool) -> None:
    template = ChatTemplate(source, "m")
    await template.compile()
    assert template.takes_tools is takes


def write(folder: Path, template: object = None, file: str | None = None, **tokens: object) -> Path:
    folder.mkdir(parents=True)
    config = {"chat_template": template, **tokens}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if file is not None:
        (folder / "chat_template.jinja").write_text(file)
    return folder


async def prompt(folder: Path | None, **parameters: str) -> str | None:
    template = read_template("m", parameters, folder)
    return None if template is None else await rendered_by(template)


async def test_files(tmp_path: Path) -> None:
    assert await prompt(None) is None
    assert await prompt(write(tmp_path / "none" / "1")) is None
    config = write(tmp_path / "a" / "1", "{{ bos_token }}!", bos_token="<s>")
    assert await prompt(config) == "<s>!"
    assert await prompt(write(tmp_path / "b" / "1", "no", "{{ bos_token }}?", bos_token={"content": "<o>"})) == "<o>?"
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert await prompt(write(tmp_path / "c" / "1", named)) == "d"
    assert await prompt(config, chat_template="{{ bos_token }}p", bos_token="<p>") == "<p>p"
    beside = write(tmp_path / "d", "of the model")
    (beside / "1").mkdir()
    assert await prompt(beside / "1") == "of the model"
    assert await prompt(write(beside / "2", None, "{{ bos_token }} of {{ eos_token }}", bos_token="<s>")) == "<s> of "
    assert await prompt(beside / "2", eos_token="</p>") == "<s> of </p>"


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("tokenizer_config.json", b"{", "tokenizer_config.json of model 'm' is no JSON"),
        ("tokenizer_config.json", b"\xff", "tokenizer_config.json of model 'm' cannot be read"),
        ("chat_template.jinja", b"\xff", "chat_template.jinja of model 'm' cannot be read"),
        ("chat_template.jinja", b"x" * 2_000_000, "chat_template.jinja of model 'm' is longer than 1048576 bytes"),
    ],
)
def test_broken_files(tmp_path: Path, name: str, content: bytes, text: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModserveError, match=text) as raised:
        read_template("m", {}, tmp_path)
    assert raised.value.code is Code.INTERNAL


def test_without_jinja2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert read_template("m", {}, tmp_path) is None
    with pytest.raises(ModserveError, match=re.escape(f"chat templates need Jinja2: {pip_install('text')}")) as raised:
        read_template("m", {"chat_template": "{{ 1 }}"}, tmp_path)
    assert raised.value.code is Code.UNSUPPORTED


def test_all_who_come_at_once_without_jinja2_hear_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    start = threading.Barrier(8)

    def read() -> set[Code]:
        codes = set()
        start.wait()
        for _ in range(50):
            with pytest.raises(ModserveError) as raised:
                read_template("m", {"chat_template": "{{ 1 }}"}, None)
            codes.add(raised.value.code)
        return codes

    with ThreadPoolExecutor(8) as threads:
        assert [each.result() for each in [threads.submit(read) for _ in range(8)]] == [{Code.UNSUPPORTED}] * 8
