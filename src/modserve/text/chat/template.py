"""Chat templates: a conversation as the prompt that a model was trained on, by a template of Jinja2.

A template comes with a model, from whoever made that, so it gets no more than a function of its arguments needs:
Jinja2's sandbox, which lets it change nothing and reach no internals; no loader; a list of filters; texts of a bounded
length; and a bounded time, which each turn of a loop and each call of a macro looks at. Templates see what those of
Hugging Face's ``transformers`` see: `messages`, `tools`, `add_generation_prompt`, the special tokens,
``raise_exception``, ``strftime_now``, ``break`` and ``continue``, and blocks of ``generation``, which change nothing.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import jinja2
from jinja2 import meta, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from modserve.core.errors import Code, ModserveError, internal

from .errors import TemplateError

MOST_CHARACTERS: Final = 16 * 1024 * 1024
"""Of any text that a template makes."""
MOST_SECONDS: Final = 2.0
"""Of a thread's CPU time for one conversation."""
MOST_SOURCE: Final = 1024 * 1024
_LOOK = 64
"""Turns of loops between two looks at the clock."""

_FILTERS = (
    "abs capitalize count d default dictsort e escape first float groupby int items last length list lower max min "
    "reverse round safe sort sum title trim truncate unique upper"
)
_LAZY_FILTERS = ("map", "reject", "rejectattr", "select", "selectattr")
_WIDENING = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
"""Methods of texts whose result is as long as a number says."""
_GLOBALS = frozenset({"range", "dict", "namespace", "cycler", "joiner"})
_TICK, _WHOLE = "__tick", "__whole"


class SlowTemplateError(Exception):
    """The time is over in which a template should have ended."""


class _Refusal(Exception):
    """``raise_exception`` of a template."""


class ChatTemplate:
    """A template that has been looked at. Made on any thread; raises INTERNAL for a source that is none."""

    def __init__(self, source: str, model: str, special_tokens: Mapping[str, str] | None = None) -> None:
        self._model = model
        self._special_tokens = dict(special_tokens or {})
        self.slow = False
        """It has once taken longer than it may on the event loop."""
        if len(source) > MOST_SOURCE:
            raise self._broken(f"it has {len(source)} characters, at most {MOST_SOURCE} are possible")
        environment = _environment()
        try:
            tree = environment.parse(source)
            self.takes_tools = "tools" in meta.find_undeclared_variables(tree)
            _watch(tree, environment)
            self._template = environment.from_string(tree)
        except jinja2.TemplateError as error:
            raise self._broken(_reason(error)) from None
        except RecursionError:
            raise self._broken("it is nested too deeply") from None

    def render(self, variables: Mapping[str, object], seconds: float = MOST_SECONDS) -> str:
        """The prompt. Raises INVALID_ARG if the template refuses the conversation or fails on it, INTERNAL for a
        template that reaches out or makes too long a text, and `SlowTemplateError` after `seconds` of CPU time."""
        ticks, end = 0, time.thread_time() + seconds

        def tick() -> str:
            nonlocal ticks
            ticks += 1
            if ticks % _LOOK == 0 and time.thread_time() > end:
                raise SlowTemplateError
            return ""

        parts: list[str] = []
        size = 0
        try:
            for part in self._template.generate({**self._special_tokens, **variables, _TICK: tick}):
                size += len(part)
                _check_size(size)
                parts.append(part)
        except SlowTemplateError:
            raise
        except _Refusal as error:
            raise self._error(Code.INVALID_ARG, "refuses the messages", str(error)) from None
        except SecurityError as error:
            raise self._error(Code.INTERNAL, "does what none may", str(error)) from None
        except (RecursionError, MemoryError) as error:
            kind = "calls itself too often" if isinstance(error, RecursionError) else "needs too much memory"
            raise internal(f"the chat template of model '{self._model}' {kind}") from None
        except Exception as error:  # a template may fail like any program, at what a client sent
            what = f"{type(error).__name__}: {error}"[:500]
            raise self._error(Code.INVALID_ARG, "fails on these messages", what) from None
        return "".join(parts)

    def too_slow(self) -> ModserveError:
        """INTERNAL, for a template that has not ended in `MOST_SECONDS`."""
        return internal(f"the chat template of model '{self._model}' did not end within {MOST_SECONDS:g} s of CPU time")

    def _error(self, code: Code, failure: str, detail: str) -> TemplateError:
        return TemplateError(code, f"the chat template of model '{self._model}' {failure}", detail)

    def _broken(self, why: str) -> ModserveError:
        return internal(f"the chat template of model '{self._model}' cannot be used: {why}")


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, in which operators and methods make no text of more than `MOST_CHARACTERS`."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if type(left) is str and type(right) is str and operator == "+":  # most are
            _check_size(len(left) + len(right))
            return left + right
        if operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if isinstance(sequence, str | list | tuple) and isinstance(times, int):
                    _check_size(_size(sequence) * times)
        elif operator == "**":
            raise SecurityError("the operator **")
        elif operator == "%" and isinstance(left, str):
            raise SecurityError("the operator % on texts")
        elif operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            _check_size(_size(left) + _size(right))
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, int) and result.bit_length() > _MOST_BITS:
            raise SecurityError(f"a number of more than {_MOST_BITS} bits")
        return result

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return super().is_safe_attribute(obj, attr, value) and not (isinstance(obj, str) and attr in _WIDENING)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is not None:
            raise SecurityError("the method format of texts")
        return None

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """Of the texts of blocks and macros."""
        return _joined("", parts)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            name = getattr(__obj, "__name__", "")
            if name == "replace" and len(args) >= 2:
                _check_replacement(owner, *args[:2])
            elif name == "join" and args:
                return _joined(owner, args[0])
        return super().call(__context, __obj, *args, **kwargs)


_MOST_BITS = 4096


class _Generation(Extension):
    """``{% generation %}``, with which training marks what the model wrote: its body, as it is."""

    tags = {"generation"}  # noqa: RUF012 - as the base class has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[loopcontrols, _Generation],
        cache_size=0,
        optimized=False,
        finalize=_text,
    )
    lazy = {name: _looking(environment.filters[name]) for name in _LAZY_FILTERS}
    environment.filters = {name: environment.filters[name] for name in _FILTERS.split()} | lazy
    environment.filters |= {"tojson": _to_json, "replace": _replace, "join": _join, "indent": _indent, "string": _text}
    environment.globals = {name: each for name, each in environment.globals.items() if name in _GLOBALS}
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now, _WHOLE: _whole}
    return environment


def _looking(lazy: Callable[..., Iterable[Any]]) -> Callable[..., Iterator[Any]]:
    """A filter that looks at the time for each of its elements."""

    @pass_context
    def looking(context: Context, value: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        tick = context.resolve(_TICK)
        for each in lazy(context, value, *args, **kwargs):
            tick()
            yield each

    return looking


def _watch(tree: nodes.Template, environment: _Environment) -> None:
    """Each turn of a loop, and each call of a macro, begins with a look at the time; whatever joins texts, or puts
    values into lists and objects, looks at their size."""
    for loop in list(tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))):
        assert isinstance(loop, nodes.For | nodes.Macro | nodes.CallBlock), "so they were chosen: this is a bug"
        loop.body.insert(0, nodes.Output([_call(_TICK)]).set_lineno(loop.lineno))
        if isinstance(loop, nodes.For) and loop.test is not None:
            looked = nodes.Compare(_call(_TICK), [nodes.Operand("eq", nodes.Const(""))])
            loop.test = nodes.And(looked, loop.test).set_lineno(loop.lineno)
    _bound(tree)
    tree.set_environment(environment)


def _bound(node: nodes.Node) -> None:
    """``a ~ b``, and lists and objects in the source, call nothing that could look at them: they become calls."""
    for name, value in list(node.iter_fields()):
        for index, child in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(child, nodes.Node):
                continue
            _bound(child)
            if isinstance(child, nodes.Concat):
                bounded: nodes.Expr = nodes.Filter(nodes.List(child.nodes), "join", [], [], None, None)
            elif isinstance(child, nodes.List | nodes.Dict) or (isinstance(child, nodes.Tuple) and child.ctx == "load"):
                bounded = _call(_WHOLE, child)
            else:
                continue
            bounded.set_lineno(child.lineno)
            if isinstance(value, list):
                value[index] = bounded
            else:
                setattr(node, name, bounded)


def _call(name: str, *arguments: nodes.Expr) -> nodes.Call:
    return nodes.Call(nodes.Name(name, "load"), list(arguments), [], None, None)


def _whole(value: Any) -> Any:
    _check_size(_size(value))
    return value


def _check_size(size: int) -> None:
    if size > MOST_CHARACTERS:
        raise SecurityError(f"a value of {size} characters and elements, at most {MOST_CHARACTERS} are possible")


def _size(value: Any, sizes: dict[int, int] | None = None) -> int:
    """About how many characters and elements a value would have if nothing in it were shared."""
    if isinstance(value, str):
        return len(value)
    if not isinstance(value, list | tuple | dict):
        return 1
    sizes = {} if sizes is None else sizes
    known = sizes.get(id(value))
    if known is None:
        elements = value.values() if isinstance(value, dict) else value
        known = sizes[id(value)] = 1 + sum(_size(each, sizes) for each in elements)
    return known


def _text(value: Any) -> str:
    """A value as it is printed."""
    if type(value) is str:
        return value
    _check_size(_size(value))
    return str(value)


def _joined(separator: str, parts: Iterable[Any]) -> str:
    texts, size = [], 0
    for part in parts:
        texts.append(_text(part))
        size += len(texts[-1]) + len(separator)
        _check_size(size)
    return separator.join(texts)


def _check_replacement(text: str, old: Any, new: Any) -> None:
    _check_size(len(text) + text.count(str(old)) * len(str(new)))


def _join(value: Any, d: str = "", attribute: str | None = None) -> str:
    return _joined(str(d), value if attribute is None else (each[attribute] for each in value))


def _replace(text: Any, old: str, new: str, count: int | None = None) -> str:
    whole = _text(text)
    _check_replacement(whole, old, new)
    return whole.replace(old, new, -1 if count is None else count)


def _indent(text: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    lines = _text(text).split("\n")
    step = len(width) if isinstance(width, str) else width
    _check_size(sum(map(len, lines)) + step * len(lines))
    space = width if isinstance(width, str) else " " * width
    return "\n".join(space + line if (index or first) and (line or blank) else line for index, line in enumerate(lines))


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """As ``transformers`` has it, which escapes nothing for HTML."""
    _check_size(_size(value) * (1 + (indent or 0)))
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object = "") -> None:
    raise _Refusal(_text(message)[:500])


def _strftime_now(format: str) -> str:
    return datetime.now().astimezone().strftime(format[:100])


def _reason(error: jinja2.TemplateError) -> str:
    line = getattr(error, "lineno", None)
    return f"{error.message or type(error).__name__}" + ("" if line is None else f", line {line}")
