"""Text for the terminal: at the start of a server, and from commands that do not start one."""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from modserve.backends.inventory import BackendEntry
from modserve.core.configuration.model_config import ModelConfig, TensorSpec
from modserve.core.lifecycle import IndexEntry
from modserve.core.runtime import unix_socket
from modserve.observability.logging import escape
from modserve.protocol import examples

_MOST_ELEMENTS = 256
_MOST_REPEATED = 100
"""Characters of a reason that the log has in full."""

_DEFAULT_URL = "http://localhost:8000"
"""Default URL of the commands."""

_PROMPT = "text_input"
"""The input that language models have."""
_CHANNELS = (1, 3)
_SMALLEST_IMAGE = 8

_OF_ANY = {"": "localhost", "0.0.0.0": "localhost", "::": "::1"}
"""An address by which a server with any of these is reached."""


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """The address of the HTTP port, or Unix socket, on this machine.

    `tls`: its certificate may be unknown to curl. `keyed`: callers need keys, which are in the environment.
    """

    address: str
    port: int
    tls: bool = False
    keyed: bool = False

    def curl(self, path: str) -> str:
        """Return the curl command for a path, without a body."""
        scheme = "https://" if self.tls else ""
        options = " -k" if self.tls else ""
        if self.keyed:
            options += ' -H "x-api-key: $MODSERVE_API_KEY"'
        if file := unix_socket.path_of(self.address):
            url = f"{scheme or 'http://'}localhost{path}"
            return f"curl --unix-socket {shlex.quote(file)}{options} {shlex.quote(url)}"
        if ":" in self._host:
            options = f" -g{options}"
        return f"curl{options} {shlex.quote(f'{scheme}{self._host}:{self.port}{path}')}"

    @property
    def url(self) -> str:
        in_file = unix_socket.path_of(self.address)
        return f"{unix_socket.PREFIX}{in_file}" if in_file else f"http{'s' * self.tls}://{self._host}:{self.port}"

    def modserve(self, command: str, model: str, arguments: str = "") -> str:
        """Return a command of modserve's for a model."""
        options = "" if self.url == _DEFAULT_URL else f" --url {shlex.quote(self.url)}"
        return f"modserve {command} {shlex.quote(model)}{arguments}{options}{' --insecure' * self.tls}"

    @property
    def _host(self) -> str:
        host = _OF_ANY.get(self.address, self.address)
        return f"[{host}]" if ":" in host else host


def models_table(entries: Sequence[IndexEntry], *, logged: bool = False) -> str:
    """The models with version, state and load time, failed ones first. The reason of a failure is below its line.

    `logged`: the reasons are in the log above the table, so that their beginnings will do.
    """
    entries = sorted(entries, key=lambda entry: not entry.failed)
    failed = sum(entry.failed for entry in entries)
    rows = [("model", "version", "state", "load time")]
    for entry in entries:
        version = "-" if entry.version is None else str(entry.version)
        load_time = f"{entry.load_ns / 1e9:.3f} s" if entry.load_ns else "-"
        rows.append((escape(entry.name), version, entry.state.value, load_time))
    heading, rule, *lines = _align(rows)
    out = [heading, rule]
    for line, entry in zip(lines, entries, strict=True):
        out.append(line)
        reasons = entry.reason.splitlines()
        if logged and reasons and len(entry.reason) > _MOST_REPEATED:
            reasons = [f"{reasons[0][:_MOST_REPEATED]} … (see above)"]
        out += [f"    {escape(text)}" for text in reasons]
    if failed and len(entries) > 1:
        out += ["", f"{failed} of {len(entries)} versions failed: they are listed first, with the reasons."]
    return "\n".join(out)


def engines_table(entries: Sequence[BackendEntry]) -> str:
    """Return a table of the backends, the missing ones last, each with the command that installs it."""
    rows = [("backend", "library", "loads")]
    rows += [(each.backend, f"{each.library} {each.version}".strip() or "-", each.loads or "-") for each in entries]
    heading, rule, *lines = _align(rows)
    out = [heading, rule]
    for index, (line, each) in enumerate(zip(lines, entries, strict=True)):
        if not each.installed and (not index or entries[index - 1].installed):
            out += ["", "Not installed:"]
        out.append(line)
        prefix = "or by its own library: " if each.installed else ""
        out += [f"    {prefix}{command}" for command in each.install.splitlines()]
    return "\n".join(out)


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the first row, a line below it, and the others, with spaces so that columns begin below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    heading, *lines = ["  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)) for row in rows]
    return [heading.rstrip(), "  ".join("-" * width for width in widths), *(line.rstrip() for line in lines)]


def example_call(models: Sequence[ModelConfig], place: HttpAddress) -> str:
    """Return a call of the model that says most to a person, of its kind; empty if there is no model.

    A chat for a language model, ``generate`` for one of single values, such as a function, and a file for one of
    pictures. Other models get generated data; but sequences and streams need a call of their own.
    """
    if not models:
        return ""
    by_name = {model.name: model for model in models}
    config = min(models, key=lambda model: _effort(model, by_name))
    if _PROMPT in config.inputs_by_name:
        return place.modserve("chat", config.name)
    if _takes_image(config):
        return f"{place.modserve('infer', config.name, ' @picture.jpg')}    # yours; or --sample in place of it"
    is_stream, parameters = examples.decoupled(config, by_name), examples.parameters(config, by_name)
    if all(_is_single(config, spec) for spec in examples.choose_inputs(config)):
        call, body = "generate", examples.generate(config, by_name)
    elif (is_stream or parameters) and examples.elements(config) <= _MOST_ELEMENTS:
        call, body = "infer", examples.infer(config, by_name)
    else:
        return place.modserve("infer", config.name, " --sample")
    path = f"/v2/models/{quote(config.name, safe='')}/{call}{'_stream' * is_stream}"
    return f"{place.curl(path)} -d {shlex.quote(json.dumps(body, separators=(',', ':')))}"


def waiting_line(names: Sequence[str], place: HttpAddress | None) -> str:
    """Return instructions for models that load only on request, before the first request."""
    count = f"{len(names)} models wait" if len(names) != 1 else "1 model waits"
    text = f"{count} for a load call: {', '.join(names[:5])}{', …' if len(names) > 5 else ''}"
    if place is None:
        return text
    path = f"/v2/repository/models/{quote(names[0], safe='')}/load"
    return f"{text}\n  {place.curl(path)} -X POST"


def _effort(config: ModelConfig, by_name: Mapping[str, ModelConfig]) -> tuple[object, ...]:
    """Smallest for the model that is easiest to call: of fixed sizes, without sequences, with one response.

    Before them come language models, and what is put together of others; after them, models without inputs.
    """
    steps = {step.model for model in by_name.values() if model.ensemble is not None for step in model.ensemble.steps}
    return (
        not config.inputs,
        _PROMPT not in config.inputs_by_name,
        config.name in steps,
        examples.elements(config) > _MOST_ELEMENTS,
        _takes_image(config),
        bool(examples.sequences(config, by_name)),
        examples.decoupled(config, by_name),
        any(size < 0 for spec in config.inputs for size in spec.dims),
        examples.elements(config),
        config.name,
    )


def _is_single(config: ModelConfig, spec: TensorSpec) -> bool:
    """True if an example has one value for this input, and not only since all its sizes may vary."""
    return math.prod(examples.shape(config, spec)) == 1 and sum(size < 0 for size in spec.dims) <= 1


def _takes_image(config: ModelConfig) -> bool:
    """True if the one input that the model needs has the dimensions of a picture, grey or in colour."""
    needed = examples.choose_inputs(config)
    if len(needed) != 1 or needed[0].datatype.json_kind not in ("int", "float"):
        return False
    dims = needed[0].dims
    if len(dims) == 4 and dims[0] in (1, -1):  # of a graph with a batch that modserve does not know as such
        dims = dims[1:]
    if len(dims) != 3:
        return False
    first, _, last = dims
    sizes = dims[1:] if first in _CHANNELS else dims[:-1] if last in _CHANNELS else ()
    return bool(sizes) and all(size < 0 or size >= _SMALLEST_IMAGE for size in sizes)
