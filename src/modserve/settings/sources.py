"""Settings from the command line, the environment, and an option file in YAML or TOML, in this order of precedence."""

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from pydantic import ValidationError

from modserve.core.secret_names import KEY_VARIABLE
from modserve.core.texts import is_unicode, unicode_text

from . import front_ends
from .options import OptionError, did_you_mean
from .setting_types import PLACE, boolean
from .settings import OPTIONS, Settings

_NO_POOLS = "memory comes from the system, so there are no pools to size"
_OWN_THREADS = "requests are handled on one event loop, and models run on threads of their own"
_ONE_PORT = "--platform=sagemaker and --platform=vertex serve these endpoints at the HTTP port"

WITHOUT_EFFECT: Mapping[str, str] = {
    "allow-sagemaker": _ONE_PORT,
    "allow-vertex-ai": _ONE_PORT,
    "backend-directory": "backends are installed as Python packages",
    "buffer-manager-thread-count": _OWN_THREADS,
    "cache-directory": "the response cache is built in; see --cache-config",
    "cuda-memory-pool-byte-size": _NO_POOLS,
    "cuda-virtual-address-size": _NO_POOLS,
    "enable-peer-access": "no memory is copied between GPUs",
    "grpc-infer-allocation-pool-size": _NO_POOLS,
    "grpc-infer-thread-count": _OWN_THREADS,
    "grpc-max-response-pool-size": _NO_POOLS,
    "host-policy": "threads are not bound to cores or NUMA nodes; numactl and taskset do that",
    "http-thread-count": _OWN_THREADS,
    "min-supported-compute-capability": "the engine decides which GPUs it runs on",
    "model-load-gpu-limit": "the engine decides how much of a GPU a model may use",
    "model-namespacing": "model names must be unique over all repositories; models with the same name do not load",
    "pinned-memory-pool-byte-size": _NO_POOLS,
    "repoagent-directory": "only the repository agent checksum is built in; models that need another one do not load",
    "sagemaker-port": _ONE_PORT,
    "sagemaker-safe-port-range": _ONE_PORT,
    "sagemaker-thread-count": _ONE_PORT,
    "vertex-ai-port": _ONE_PORT,
    "vertex-ai-thread-count": _ONE_PORT,
}
"""Ignored options that users do not miss, each with the reason: accepted with a warning, so that scripts still work."""

SWITCHES = frozenset(
    {
        "allow-sagemaker",
        "allow-vertex-ai",
        "enable-peer-access",
        "model-namespacing",
    }
)
"""Switches in `WITHOUT_EFFECT`; switching one off needs no warning."""


FieldPath: TypeAlias = tuple[str, ...]
"""Path of a field in `Settings`, or in `http` or `grpc`."""

CONFIG = "config"
"""The option that names an option file."""
PYTHON_MODEL, MODEL_FILE = "python-model", "model-file"
"""Options with optional names."""
_KNOWN = (CONFIG, *OPTIONS, *WITHOUT_EFFECT)
_WORKING = (CONFIG, *OPTIONS)
"""Options suggested for misspelled ones."""
_NICKNAMES: Mapping[str, str] = {
    "address": "http-address",
    "host": "http-address",
    "model": "model-repository",
    "models": "model-repository",
    "model-dir": "model-repository",
    "port": "http-port",
}
"""Common wrong names of options."""


class OptionEntry(NamedTuple):
    """An option as it was written."""

    name: str
    text: str
    place: str
    """Beginning of error texts: ``option '--http-port'``."""


# All sources


@dataclass(frozen=True, slots=True)
class CommandLine:
    """Contents of a command line: settings, and warnings about ineffective or deprecated options."""

    settings: Settings
    warnings: tuple[str, ...] = ()


def from_command_line(
    arguments: Sequence[str], environment: Mapping[str, str] | None = None, argument: str = ""
) -> CommandLine:
    """Read the command line over the environment, and both over the option file that they name.

    `argument`: the option for words without a name.

    Raises OptionError, with the place of the mistake, and a suggestion for a misspelled name.
    """
    warnings: list[str] = []
    variables = list(from_environment(os.environ if environment is None else environment, warnings))
    words = list(from_words(arguments, argument))
    files = [entry.text for entry in (*variables, *words) if entry.name == CONFIG]
    file = list(from_file(files[-1])) if files else []
    values: dict[FieldPath, Any] = {}
    places: dict[FieldPath, str] = {}
    for source in (file, variables, words):
        values |= _values([entry for entry in source if entry.name in OPTIONS], places)
        warnings += _without_effect([entry for entry in source if entry.name in WITHOUT_EFFECT])
        warnings += [
            f"{place} is deprecated: use {instead}"
            for name, _, place in source
            if name in OPTIONS and (instead := OPTIONS[name].deprecated)
        ]
    fields: dict[str, Any] = front_ends.variable(os.environ if environment is None else environment)
    for (*subject, field), value in values.items():
        (fields.setdefault(subject[0], {}) if subject else fields)[field] = value
    try:
        settings = Settings(**fields)
    except ValidationError as error:
        raise OptionError(_explain(error, places)) from None
    return CommandLine(settings, tuple(dict.fromkeys((*warnings, *settings.remarks))))


def _values(entries: Sequence[OptionEntry], places: dict[FieldPath, str]) -> dict[FieldPath, Any]:
    """Return the values of the fields that a source sets; `places` gets their locations. Raises OptionError."""
    if {"cache-config", "response-cache-byte-size"} <= {entry.name for entry in entries}:
        raise OptionError(
            "Incompatible flags --response-cache-byte-size and --cache-config both provided. Please provide one or the "
            "other."
        )
    values: dict[FieldPath, Any] = {}
    winning: dict[FieldPath, Any] = {}
    for name, text, place in entries:
        if not is_unicode(text):
            raise OptionError(unicode_text(f"{place} is not UTF-8"))
        option = OPTIONS[name]
        target = values
        try:
            if option.expand is not None:
                expansion = option.expand(text)
                if expansion is None:
                    continue
                option, text = OPTIONS[expansion[0]], expansion[1]
                target = winning
            value = option.parse(text)
        except ValueError as error:
            raise OptionError(f"{place}: {error}") from None
        for path in option.paths:
            if option.several:
                values.setdefault(path, []).append(value)
            else:
                target[path] = value
            places[path] = place
    return values | winning


def _without_effect(entries: Iterable[OptionEntry]) -> Iterator[str]:
    """Yield warnings about ineffective options. Raises OptionError for an invalid value of a tritonserver switch."""
    for name, text, place in entries:
        if name in SWITCHES:
            try:
                if not boolean(text):
                    continue
            except ValueError as error:
                raise OptionError(f"{place}: {error}") from None
        yield f"{place} has no effect in modserve: {WITHOUT_EFFECT[name]}"


def _explain(error: ValidationError, places: Mapping[FieldPath, str]) -> str:
    lines = []
    for problem in error.errors():
        message = problem["msg"].removeprefix("Value error, ")
        place = next((place for path, place in places.items() if problem["loc"][: len(path)] == path), None)
        if place is not None:
            message = f"{place}: {message}"
            if isinstance(problem["input"], str | int):
                message += f", got: {problem['input']}"
        lines.append(message)
    return "\n".join(dict.fromkeys(lines))


# The command line


def from_words(words: Sequence[str], argument: str = "") -> Iterator[OptionEntry]:
    """Read ``--name value``, ``--name=value`` and unambiguous prefixes of names, like tritonserver's getopt_long.

    A word such as ``my_module:my_model`` is a model by itself, and so is a file; with `argument`, each word is a value
    of that option. Unlike with argparse, values may begin with a dash. Underscores in names count as dashes. Raises
    OptionError.
    """
    remaining = iter(words)
    for word in remaining:
        if argument and not word.startswith("-"):
            yield OptionEntry(argument, word, f"argument '{word}'")
            continue
        if not word.startswith("-") and PLACE.fullmatch(word) and not os.path.exists(word):
            yield OptionEntry(PYTHON_MODEL, word, f"argument '{word}'")
            continue
        if not word.startswith("-") and _may_be_file(word):
            yield OptionEntry(MODEL_FILE, word, f"argument '{word}'")
            continue
        if not word.startswith("--"):
            raise OptionError(f"Unexpected argument: {word}")
        spelling, equals, text = word[2:].partition("=")
        name = _resolve(spelling)
        if not equals:
            value = "true" if name in OPTIONS and OPTIONS[name].flag else next(remaining, None)
            if value is None:
                raise OptionError(f"option '--{name}' requires a value")
            text = value
        yield OptionEntry(name, text, f"option '--{name}'")


def _may_be_file(word: str) -> bool:
    """True if a word is a file, or looks like a missing one."""
    file = word.rpartition("=")[2]
    return bool(os.sep in file or Path(file).suffix) or os.path.exists(word) or os.path.exists(file)


def _resolve(spelling: str) -> str:
    """Return the option with this name or prefix. Raises OptionError."""
    name = spelling.replace("_", "-")
    if name in _KNOWN:
        return name
    matches = [] if not name or name in _NICKNAMES else [each for each in _KNOWN if each.startswith(name)]
    if len(matches) > 1:
        listed = ", ".join(f"--{match}" for match in sorted(matches))
        raise OptionError(f"option '--{spelling}' is ambiguous: {listed}")
    if matches:
        return matches[0]
    if name == "api-key":
        raise OptionError(f"a key is no option, since lists of processes show options; set {KEY_VARIABLE}")
    raise OptionError(f"unknown option '--{spelling}'{_hint(name, '--')}")


def _hint(name: str, dashes: str = "") -> str:
    """Return the end of an error text, with the option that was probably meant."""
    name = _NICKNAMES.get(name, name)
    return did_you_mean(name, _WORKING, dashes) or "; 'modserve --help-all' lists all options"


# The environment

_PREFIX = "MODSERVE_"
_LINK = re.compile(r"[a-z]+://\S+:\d+", re.ASCII)
"""Value of the variable ``X_PORT`` that Kubernetes and Docker set for a service called x."""
_LINKED = re.compile(r"MODSERVE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
"""Names of their other variables for services called modserve or modserve-…"""

_OF_OTHERS = frozenset({"MODSERVE_URL", "MODSERVE_METRICS_URL", "MODSERVE_COMPILED", KEY_VARIABLE})
"""Variables of commands that call a server, of scripts/serve for the form, and of keys."""


def from_environment(environment: Mapping[str, str], warnings: list[str]) -> Iterator[OptionEntry]:
    """Read variables ``MODSERVE_…``; `warnings` gets a line for each ineffective one."""
    names = {_PREFIX + name.upper().replace("-", "_"): name for name in _KNOWN}
    for variable, text in environment.items():
        if not variable.startswith(_PREFIX) or _LINKED.fullmatch(variable) or variable in _OF_OTHERS:
            continue
        name = names.get(variable)
        if variable.endswith("_PORT") and _LINK.fullmatch(text):
            if name is not None:
                service = variable.removesuffix("_PORT").lower().replace("_", "-")
                warnings.append(
                    f"environment variable {variable}={text} is ignored: it is what Kubernetes sets for a service "
                    f"called {service}; '--{name}' or 'enableServiceLinks: false' in the pod avoids the clash"
                )
        elif name is None:
            hint = did_you_mean(variable, [each for each, name in names.items() if name in _WORKING])
            warnings.append(f"environment variable {variable} is ignored: there is no such option{hint}")
        else:
            yield OptionEntry(name, text, f"environment variable {variable}")


# Option files


def from_file(file: str) -> Iterator[OptionEntry]:
    """Read a YAML file, or TOML with the suffix ``.toml``: options by name, without the leading dashes.

    Lists are for repeatable options; mappings stand for ``a,b=c``. Raises OptionError.
    """
    try:
        text = Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"cannot read the option file {file}: {getattr(error, 'strerror', None) or error}") from None
    for key, values, line in (_toml if Path(file).suffix.lower() == ".toml" else _yaml)(file, text):
        name = key.replace("_", "-")
        place = f"{file}:{line}" if line else file
        if name == CONFIG:
            raise OptionError(f"{place}: an option file cannot name another one")
        if name not in _KNOWN:
            raise OptionError(f"{place}: unknown option '{key}'{_hint(name)}")
        if len(values) != 1 and name in OPTIONS and not (OPTIONS[name].several or OPTIONS[name].expand):
            raise OptionError(f"{place}: option '{name}' takes one value")
        for value in values:
            yield OptionEntry(name, value, f"{place}: option '{name}'")


def _toml(file: str, text: str) -> Iterator[tuple[str, list[str], int]]:
    try:
        options = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise OptionError(f"{file}: not TOML: {error}") from None
    lines = text.splitlines()
    for key, value in options.items():
        beginning = re.compile(rf"""\s*\[?\s*["']?{re.escape(key)}\b""")
        line = next((number for number, each in enumerate(lines, 1) if beginning.match(each)), 0)
        yield key, _texts(value), line


def _yaml(file: str, text: str) -> Iterator[tuple[str, list[str], int]]:
    """Yield the values as text, as written in the file: YAML's types are ignored."""
    import yaml

    def value_of(node: yaml.Node) -> Any:
        if isinstance(node, yaml.MappingNode):
            return {str(value_of(key)): value_of(value) for key, value in node.value}
        return [value_of(each) for each in node.value] if isinstance(node, yaml.SequenceNode) else node.value

    try:
        root = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise OptionError(f"{file}: not YAML: {error}") from None
    if root is None:
        return
    if not isinstance(root, yaml.MappingNode):
        raise OptionError(f"{file}: expected options by name, such as 'http-port: 8000'")
    for key, value in root.value:
        yield str(key.value), _texts(value_of(value)), key.start_mark.line + 1


def _texts(value: object) -> list[str]:
    """Return the equivalent texts of a command line: several for a list or a mapping."""
    match value:
        case dict():
            pairs = ((key, each, isinstance(each, dict)) for key, each in value.items())
            return [f"{key}{',' if nested else '='}{text}" for key, each, nested in pairs for text in _texts(each)]
        case list():
            return [text for each in value for text in _texts(each)]
        case bool():
            return [str(value).lower()]
        case _:
            return [str(value)]
