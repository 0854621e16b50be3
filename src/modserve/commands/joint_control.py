"""Loads and unloads on several servers: on all of them, or on none.

Nothing is changed unless all servers respond first. If the call then fails on one, those where it succeeded go back.
That can fail as well, so the report has the state in which each server is in the end.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from modserve.core.errors import ModserveError

from .errors import RefusedError, UnreachableError
from .model_state import ModelState, go_back, is_back, last_state, state_of
from .remote_server import RemoteServer
from .server_set import Outcome, ServerSet, failure_text
from .syntax import print_error
from .terminal import Interruption, duration, indent_lines, table

_WAITS = "waiting for calls in progress, then all servers go back; Ctrl-C again leaves them as they are"
Call: TypeAlias = Callable[[RemoteServer], None]


@dataclass(frozen=True, slots=True)
class ServerRow:
    """Result of one server. `state` is the final state, and `reason` the cause of a failure."""

    url: str
    outcome: str
    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class JointReport:
    """Outcome of a call. `done`: it succeeded on all servers. `clean`: all servers or none have changed."""

    rows: Sequence[ServerRow]
    done: bool
    clean: bool

    def lines(self) -> Iterator[str]:
        head, rule, *body = table(
            ("server", "outcome", "state"), [(row.url, row.outcome, row.state) for row in self.rows]
        )
        yield head
        yield rule
        for text, row in zip(body, self.rows, strict=True):
            yield text
            yield from indent_lines(row.reason)


def on_all(
    servers: ServerSet, model: str, verb: str, call: Call, interruption: Interruption, *, must_exist: bool = True
) -> JointReport:
    """Call all servers. `verb`: loaded or unloaded. With `must_exist`, servers without the model refuse the call."""
    states = servers.call(lambda server: _state(server, model, must_exist))
    if any((interruption.happened, *(each.error is not None for each in states))):
        return JointReport([_make_unchanged_row(each) for each in states], False, True)
    before = {each.url: each.value for each in states}
    calls = servers.call(call)
    if not interruption.happened and all(each.error is None for each in calls):
        return JointReport(_list_results(servers, model, verb, calls), True, True)
    unsure = {each.url for each in calls if isinstance(each.error, UnreachableError)}
    ends = servers.call(lambda server: go_back(server, model, before[server.url], unsure=server.url in unsure))
    last = servers.call(lambda server: last_state(server, model))
    rows = [
        _row(each, end, state.value, before[each.url], verb) for each, end, state in zip(calls, ends, last, strict=True)
    ]
    clean = all(end.error is None and is_back(end.value, before[end.url]) for end in ends)
    return JointReport(rows, False, clean)


def _list_results(servers: ServerSet, model: str, verb: str, calls: Sequence[Outcome[None]]) -> list[ServerRow]:
    states = servers.call(lambda server: last_state(server, model))
    return [
        ServerRow(each.url, f"{verb} after {duration(each.seconds)}", state.value)
        for each, state in zip(calls, states, strict=True)
    ]


def run(servers: ServerSet, model: str, verb: str, call: Call, *, must_exist: bool = True) -> int:
    """Run `on_all`, print the report, and return the exit code. Raises KeyboardInterrupt for Ctrl-C, at the end."""
    try:
        with Interruption(lambda: print_error(_WAITS)) as interruption:
            report = on_all(servers, model, verb, call, interruption, must_exist=must_exist)
    except KeyboardInterrupt:
        print_error(f"{model}: servers are left as they are", f"'modserve models {model}' shows the state on each")
        raise
    print(f"{model}:")
    print("\n".join(report.lines()), flush=True)
    if report.done:
        return 0
    failed = sum(bool(row.reason) for row in report.rows)
    why = "interrupted" if interruption.happened else f"{failed} of {len(report.rows)} servers failed"
    end = "no server has changed" if report.clean else "the table has the state of each server"
    print_error(f"{model}: not {verb}: {why}; {end}")
    if interruption.happened:
        raise KeyboardInterrupt
    return 1


def _state(server: RemoteServer, model: str, must_exist: bool) -> ModelState:
    state = state_of(server, model)
    if must_exist and not state.known:
        raise RefusedError(f"model '{model}' does not exist")
    return state


def _make_unchanged_row(each: Outcome[ModelState]) -> ServerRow:
    if each.error is None:
        return ServerRow(each.url, "not called", str(each.value))
    refused = isinstance(each.error, RefusedError)
    return ServerRow(each.url, "refused" if refused else "no response", "unchanged", failure_text(each.error, each.url))


def _row(each: Outcome[None], end: Outcome[ModelState], last: str, before: ModelState, verb: str) -> ServerRow:
    reasons = [] if each.error is None else [failure_text(each.error, each.url)]
    if end.error is not None:
        reasons.append(f"it may have changed, and cannot go back: {failure_text(end.error, end.url)}")
    back = end.error is None and is_back(end.value, before)
    state = f"{last}, as before" if back else f"{last}; before: {before}"
    return ServerRow(each.url, _outcome(each.error, end.error, verb), state, "\n".join(reasons))


def _outcome(error: ModserveError | None, end: ModserveError | None, verb: str) -> str:
    if error is not None:
        return "failed"
    return f"{verb}, and back" if end is None else f"{verb}, not back"
