"""Several servers behind one command, of which any may refuse, fall silent or lose a response at any call.

Whatever happens, the report does not say that all have changed, or none, or that one is as before, unless it is so.
"""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_servers import ScriptedModel, ScriptedServer

from modserve.client.transport import LOAD, UNLOAD, Operation, Parameters
from modserve.commands.errors import RefusedError, UnreachableError
from modserve.commands.joint_control import on_all
from modserve.commands.remote_server import RemoteServer
from modserve.commands.server_set import ServerSet
from modserve.commands.terminal import Interruption

Serving = tuple[tuple[str, ...], dict[str, Any] | None]
"""The versions of a model that serve, and its configuration apart from the policy that says which, if any do."""


class FaultyServer(ScriptedServer):
    """`faults` says what becomes of its calls, in their order; all later ones succeed."""

    def __init__(self, url: str, model: ScriptedModel, faults: list[str]) -> None:
        super().__init__(url, {"m": model})
        self._faults = iter(faults)

    def call(
        self, operation: Operation, model: str = "", version: int | None = None, parameters: Parameters | None = None
    ) -> Any:
        fault = next(self._faults, "")
        if fault == "refused":
            raise RefusedError("not allowed")
        if fault == "silent":
            raise UnreachableError("no response within 1 s")
        response = super().call(operation, model, version, parameters)
        if fault == "lost":
            raise UnreachableError("the connection ended before the response")
        return response

    @property
    def serving(self) -> Serving:
        model = self.models["m"]
        config = {name: value for name, value in model.config.items() if name != "version_policy"}
        return model.ready, config if model.ready else None


MODELS = st.sampled_from([(), ("1",), ("2",)]).flatmap(
    lambda ready: st.builds(
        lambda own: ScriptedModel(("1", "2"), ready, {"backend": "b", "max_batch_size": own}), st.integers(0, 1)
    )
)
FAULTS = st.lists(st.sampled_from(["", "", "refused", "silent", "lost"]), max_size=8)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(MODELS, FAULTS), min_size=2, max_size=4), st.booleans())
def test_the_report_is_true_whatever_fails(parts: list[tuple[ScriptedModel, list[str]]], loads: bool) -> None:
    servers = [FaultyServer(f"http://s{place}", model, faults) for place, (model, faults) in enumerate(parts)]
    before = [server.serving for server in servers]

    def control(server: RemoteServer) -> None:
        server.call(LOAD if loads else UNLOAD, "m")

    group = ServerSet(servers)
    try:
        report = on_all(group, "m", "loaded" if loads else "unloaded", control, Interruption(print))
    finally:
        group.close()
    after = [server.serving for server in servers]
    if report.done:
        versions_of_all = ("2",) if loads else ()
        assert [versions for versions, _ in after] == [versions_of_all] * len(servers)
        assert report.clean
    elif report.clean:
        assert after == before
    for row, now, former in zip(report.rows, after, before, strict=True):
        if row.state.endswith("as before") or row.outcome in ("not called", "refused", "no response"):
            assert now == former, row
        if not report.done and now != former:
            assert row.reason or row.outcome.endswith("not back"), row
