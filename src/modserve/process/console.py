"""Text for the terminal: at the start of a server, and from commands that do not start one."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from modserve.backends.inventory import BackendEntry
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.lifecycle import IndexEntry
from modserve.core.runtime import unix_socket
from modserve.observability.log_text import escaped
from modserve.protocol import examples

_MOST_ELEMENTS = 256
_MOST_REPEATED = 100
"""Characters of a reason that the log has in full."""

_DEFAULT_URL = "http://localhost:8000"
"""Of the commands."""

_ANY_ADDRESS = frozenset({"", "0.0.0.0", "::"})


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
        """The curl command for a path, without a body."""
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

    def infer(self, model: str) -> str:
        """The command that sends `model` a generated request."""
        scheme, options = ("https", " --insecure") if self.tls else ("http", "")
        in_file = unix_socket.path_of(self.address)
        url = f"{unix_socket.PREFIX}{in_file}" if in_file else f"{scheme}://{self._host}:{self.port}"
        if url != _DEFAULT_URL:
            options = f" --url {shlex.quote(url)}{options}"
        return f"modserve infer {shlex.quote(model)} --sample{options}"

    @property
    def _host(self) -> str:
        host = "localhost" if self.address in _ANY_ADDRESS else self.address
        return f"[{host}]" if ":" in host else host


def models_table(entries: Sequence[IndexEntry], *, logged: bool = False) -> str:
    """The models with version, state and load time, failed ones first. The reason of a failure is below its line.

    `logged`: whoever reads the table has the reasons in the log above it, so that their beginnings will do.
    """
    entries = sorted(entries, key=lambda entry: not entry.failed)
    failed = sum(entry.failed for entry in entries)
    rows = [("model", "version", "state", "load time")]
    for entry in entries:
        version = "-" if entry.version is None else str(entry.version)
        load_time = f"{entry.load_ns / 1e9:.3f} s" if entry.load_ns else "-"
        rows.append((escaped(entry.name), version, entry.state.value, load_time))
    heading, rule, *lines = _aligned(rows)
    out = [heading, rule]
    for line, entry in zip(lines, entries, strict=True):
        out.append(line)
        reasons = entry.reason.splitlines()
        if logged and reasons and len(entry.reason) > _MOST_REPEATED:
            reasons = [f"{reasons[0][:_MOST_REPEATED]} … (see above)"]
        out += [f"    {escaped(text)}" for text in reasons]
    if failed and len(entries) > 1:
        out += ["", f"{failed} of {len(entries)} versions failed: they are listed first, with the reasons."]
    return "\n".join(out)


def engines_table(entries: Sequence[BackendEntry]) -> str:
    """What can run models here; and what could, with the command that installs it. Those that are missing come last."""
    rows = [("backend", "library", "loads")]
    rows += [(each.backend, f"{each.library} {each.version}".strip() or "-", each.loads or "-") for each in entries]
    heading, rule, *lines = _aligned(rows)
    out = [heading, rule]
    for index, (line, each) in enumerate(zip(lines, entries, strict=True)):
        if not each.installed and (not index or entries[index - 1].installed):
            out += ["", "Not installed:"]
        out.append(line)
        prefix = "or by its own library: " if each.installed else ""
        out += [f"    {prefix}{command}" for command in each.install.splitlines()]
    return "\n".join(out)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The first row, a line below it, and the others, with spaces so that columns begin below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    heading, *lines = ["  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)) for row in rows]
    return [heading.rstrip(), "  ".join("-" * width for width in widths), *(line.rstrip() for line in lines)]


def example_call(models: Sequence[ModelConfig], place: HttpAddress) -> str:
    """A line that works when pasted, for the model that is easiest to call; empty if there is no model.

    It is curl's, or modserve's if not even that model's inputs fit on a screen, or a picture's sizes are for the client
    to choose.
    """
    if not models:
        return ""
    by_name = {model.name: model for model in models}
    config = min(models, key=lambda model: _effort(model, by_name))
    if examples.elements(config) > _MOST_ELEMENTS or _takes_any_image(config):
        return place.infer(config.name)
    path = f"/v2/models/{quote(config.name, safe='')}"
    call = "infer_stream" if examples.decoupled(config, by_name) else "infer"
    text = json.dumps(examples.infer(config, by_name), separators=(",", ":"))
    return f"{place.curl(f'{path}/{call}')} -d {shlex.quote(text)}"


def waiting_line(names: Sequence[str], place: HttpAddress | None) -> str:
    """What to do if models are only loaded on request, and there has been no request."""
    count = f"{len(names)} models wait" if len(names) != 1 else "1 model waits"
    text = f"{count} for a load call: {', '.join(names[:5])}{', …' if len(names) > 5 else ''}"
    if place is None:
        return text
    path = f"/v2/repository/models/{quote(names[0], safe='')}/load"
    return f"{text}\n  {place.curl(path)} -X POST"


def _effort(config: ModelConfig, by_name: Mapping[str, ModelConfig]) -> tuple[object, ...]:
    """Smallest for the model that is easiest to call: of fixed sizes, without sequences, with one response."""
    return (
        examples.elements(config) > _MOST_ELEMENTS,
        _takes_any_image(config),
        bool(examples.sequences(config, by_name)),
        examples.decoupled(config, by_name),
        any(size < 0 for spec in config.inputs for size in spec.dims),
        len(examples.composing(config, by_name)) > 1,
        examples.elements(config),
        config.name,
    )


def _takes_any_image(config: ModelConfig) -> bool:
    """Of which one point would be a request as well, and tell nothing."""
    return any(sum(size < 0 for size in spec.dims) > 1 for spec in config.inputs)
