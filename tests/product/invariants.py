"""What is true when nothing runs any more, whatever has happened before."""

from typing import Any

import numpy as np

from modserve.access.credentials import API_KEY
from modserve.commands.replay.record_index import index_of
from modserve.core.runtime import failures
from modserve.core.servable import RequestHolder, SequenceKeeper, Servable, base
from modserve.core.tenants import Tenant
from modserve.execution.rate_limit import TurnState
from modserve.models.residency.on_demand import OnDemandModel
from modserve.models.residency.waiting import Stage
from modserve.models.serving.cached import CachedModel
from modserve.models.serving.model import Model
from modserve.recording.recorder import Recorder
from modserve.repository import rollbacks

from .keys import POSTS
from .models import MODELS
from .world import LONG_S, World, layers


def check_end(world: World) -> None:
    """Let all engines end what they have, and look at everything; stop the server, and look again."""
    world.ledger.check()
    world.tenant, world.key = 0, None
    if world.keys is not None:
        world.keys.mend()
    world.loop.hold_threads(False)
    world.mend()
    world.loop.act(world.engines.run_by_themselves)
    for entry in world.ledger.entries:
        entry.reads = True
        world.loop.act(entry.read)
    world.run(LONG_S)
    world.loop.throws = 0
    _check_settled(world)
    if world.stopping is None:
        _check_rollbacks(world)
        _check_rest(world)
        if world.draining is None:
            _check_ready_models_answer(world)
            _check_rest(world)
        world.stop()
    _check_stopped(world)
    _check_restart(world)


def _check_settled(world: World) -> None:
    assert not world.ledger.open, f"after {LONG_S} s without a reason to wait: {world.ledger.open}"
    world.ledger.check_sums()
    left = [task for task in world.operations if not task.done()]
    assert not left, f"calls of clients have not ended: {left}"
    for task in world.operations:
        error = None if task.cancelled() else task.exception()
        assert error is None or hasattr(error, "code"), f"a call of a client failed with {error!r}"
    assert not world.loop.failures, world.loop.failures
    assert sum(failures.failures.values()) >= world.loop.thrown, f"{world.loop.thrown} thrown, and {failures.failures}"
    for client in world.texts:
        client.check()
    if world.keys is not None:
        world.keys.check_posts()
    assert not world.site.streams.open, "calls outlive their clients"
    assert not world.site.context.connections, "connections outlive their clients"


def _check_rollbacks(world: World) -> None:
    """Check that rollbacks are written down, for the next server."""
    for name in world.variations:
        # An owner may remove the folder of a model that a drained server still serves: it looks there no more.
        if world.served(name) and name not in world.removed:
            assert world.server.routings.rollbacks_of(name) == rollbacks.read(world.path(name))[0], f"'{name}'"


def _check_restart(world: World) -> None:
    """The next server keeps to what was rolled back."""
    if "routed" in world.removed or not world.path("routed").exists():
        return  # its owner has removed it, with all that was written there
    rolled_back, remark = rollbacks.read(world.path("routed"))
    assert not remark
    assert world.server.routings.rollbacks_of("routed") == rolled_back, "a decision before the stop is not written down"
    if not rolled_back:
        return
    server = world.another_server()
    world.complete(server.load())
    if not world.polls:
        world.complete(server.load_model("routed"))
    assert server.routings.rollbacks_of("routed") == rolled_back
    versions = set()
    for _ in range(4):
        response = world.complete(server.infer("routed", {"IN": np.ones((1, 1), np.int64)}), LONG_S)
        versions.add(response.model_version)
    assert not versions & rolled_back.keys() or len(rolled_back) == len(MODELS["routed"].versions)
    assert world.complete(server.shut_down(), LONG_S)


def _check_ready_models_answer(world: World) -> None:
    """A model that says it is ready answers, and every model that is served has become ready again by now."""
    for name in world.variations:
        for servable in world.served(name):
            assert servable.unready_reason is None, f"{servable!r} is not ready: {servable.unready_reason}"
        if not all(world.served(each) for each in MODELS[name].needs):
            continue  # it takes requests, and cannot answer them
        versions = [servable.id.version for servable in world.served(name)]
        for version in (None, *versions) if versions else ():
            sequence: dict[str, Any] = (
                {"sequence_id": 999, "sequence_start": True, "sequence_end": True} if MODELS[name].sequences else {}
            )
            entry = world.submit(name, version=version, **sequence)
            world.run(60.0)
            assert entry.ended, f"'{name}' is ready, and does not answer"
            assert entry.failure is None, f"'{name}' is ready, and answers: {entry.failure}"
            assert entry.refusal is None, f"'{name}' is ready, and refuses a request: {entry.refusal}"


def _check_rest(world: World) -> None:
    """Nothing runs: all that is lent or counted is back."""
    table, server = world.manager.table, world.server
    assert server.memory.held == 0, f"{server.memory!r}"
    assert server.quotas.in_flight == 0, f"{server.quotas!r}"
    assert not any(usage.in_flight for usage in server.quotas.tenants.values()), f"{server.quotas.tenants}"
    _check_tenants(world)
    _check_keys(world)
    assert not table.loans._handles, "models are lent, and nobody uses them"
    assert not table.locks.busy, f"{table.locks.busy} are being changed, by nobody"
    assert not table.locks._queue
    assert not any(model.finishing for model in table.models.values()), "retired models are not closed"
    for servable in (each for model in table.models.values() for each in model.served.values()):
        for layer in layers(servable):
            _check_layer(layer)
    _check_engines(world)
    _check_limiter(world)
    _check_memory(world)


def _check_tenants(world: World) -> None:
    """The figures of each tenant are what its clients have seen, and nothing of it is left."""
    servables = (each for model in world.manager.table.models.values() for each in model.served.values())
    reports = world.server.quotas.reports([base(each) for each in servables])
    for report in reports:
        assert (report.in_flight, report.waiting) == (0, 0), f"{report} at rest"
        if report.name == POSTS:
            continue  # of which a call may be accepted, and its client never hear of it
        accepted, sent = report.results["accepted"], world.sent
        assert accepted == sent[report.name, "accepted"], f"{report}, and clients have seen {sent}"
        refused = sum(report.results.values()) - accepted
        # A model that is not there yet may be overloaded as well, before the request is any tenant's.
        assert refused <= sent[report.name, "refused"], f"{report}, and clients have seen {sent}"
        assert report.rows == accepted, f"{report}: each request has one row"
    assert {name for name, what in world.sent if what == "accepted"} <= {report.name for report in reports}


def _check_keys(world: World) -> None:
    """The file is what its owner wants it to be, and the server has read that."""
    keys = world.keys
    if keys is None:
        return
    for name in keys.secrets:
        secret, former = keys.secret(name), keys.secret(name, former=True)
        assert keys.outcomes(secret, "plain", keys.oldest) == {"ok"}
        identity = keys.authority.recognise(((API_KEY, secret.encode()),))
        assert identity is not None, f"the key '{name}' is good, and not known"
        assert identity.tenant == Tenant(name), "its limits are over"
        assert former == secret or keys.authority.recognise(((API_KEY, former.encode()),)) is None
    assert not keys.authority._waiting, "failures wait for ever"
    assert not keys.authority._pauses


def _check_layer(layer: Servable) -> None:
    assert not isinstance(layer, RequestHolder) or layer.outstanding == 0, f"{layer!r} counts requests that are over"
    assert layer.statistics.pending == 0, f"{layer!r}: {layer.statistics.pending} pending"
    assert not isinstance(layer, SequenceKeeper) or layer.open_sequences == 0, f"{layer!r} has open sequences"
    if isinstance(layer, CachedModel):
        assert not layer._flights, f"{layer!r} waits for {layer._flights}"
    if isinstance(layer, OnDemandModel):
        assert len(layer._waiting) == layer._watchers == 0
        assert layer._task is None, f"{layer!r} still comes"
        assert layer._leaving is None, f"{layer!r} still leaves"
        assert layer._stage is not Stage.HELD_BACK, f"{layer!r} is held back, for nobody"
    if isinstance(layer, Model):
        pool = layer.pool
        assert not layer.busy
        assert not layer._leaving, "instances that were removed are not closed"
        assert pool.trouble is None, f"{pool!r}: {pool.trouble}"
        assert not pool.leaving, f"{pool!r} has instances that should have left"
        places = sum(instance.places for instance in pool._instances.values())
        assert pool.free_places() == places, f"{pool!r}: {pool.free_places()} of {places} places are free"
        assert layer.statistics.instances == pool.count
        assert layer.statistics.instances_lost == 0


def _check_engines(world: World) -> None:
    """What is open of the engines is what the server has in memory."""
    models = world.models()
    assert len(world.engines.models) == len(models), (
        "engines' models are open that nobody serves, or closed ones served"
    )
    assert world.engines.made == sum(model.pool.count for model in models), "instances are open that nobody has"
    assert not world.executions
    for name, made in world.engines.ever_made.items():
        if name not in world.engines.remade and name != "hasty" and not world.limit:
            most = world.wanted_instances[name]
            assert made <= most, f"{made} instances of '{name}' were made, although its changes needed {most} at most"


def _check_limiter(world: World) -> None:
    limiter = world.limiter
    assert not any(limiter._used.values()), f"resources are in use by nobody: {limiter._used}"
    assert not limiter._waiting
    assert all(turn.state is TurnState.IDLE for turn in limiter._turns)


def _check_memory(world: World) -> None:
    report = world.server.model_memory()
    residents = [each for name in world.variations for each in world.served(name) if isinstance(each, OnDemandModel)]
    held = sum(each.held for each in residents)
    assert report.held == held, f"{report.held} bytes are held for models, which hold {held}"
    assert not report.limit or report.held <= report.limit
    for each in residents:
        assert (each.held > 0) == (each._inner is not None), f"{each!r} holds {each.held} bytes"
        assert base(each) is each


def _check_records(world: World) -> None:
    """Each request that came to a model has one record, with what its client has heard and no more than one end."""
    recorder = world.server.recorder
    assert isinstance(recorder, Recorder)
    assert recorder.held == 0, f"{recorder!r} holds {recorder.held} bytes"
    assert not any(recorder.figures.dropped.values()), f"{recorder!r}"
    index = index_of(sorted(world.records.rglob("*.jsonl")))
    assert not index.remarks
    assert recorder.figures.recorded == len(index.places)
    records = [place.read() for place in index.places]
    by_number = {int(each.id): each for each in records if each.id.isdigit()}
    assert len(by_number) == sum(each.id.isdigit() for each in records), "a request has two records"
    assert by_number.keys() == {entry.number for entry in world.ledger.entries if entry.recorded}
    for entry in world.ledger.entries:
        if not entry.recorded:
            continue
        record = by_number[entry.number]
        failures = [each.code for each in record.outcomes if each.code is not None]
        failure = entry.refusal or entry.failure
        assert failures == ([] if failure is None else [failure.code]), f"{entry!r} is recorded as {record}"
        assert sum(each.outputs is not None for each in record.outcomes) == entry.responses, f"{entry!r}: {record}"


def _check_stopped(world: World) -> None:
    assert world.stopping is not None
    world.run(LONG_S)
    assert world.stopping.done(), "the server does not stop"
    assert world.stopping.result(), "the server did not stop in time"
    if world.draining is not None:
        assert world.draining.done(), "the drain does not end"
        report = world.draining.result()
        assert (report.drained, report.in_flight) == (True, {}), "not everything was finished in time"
    assert (len(world.engines.models), world.engines.made) == (0, 0), "engines are open after the end"
    assert world.server.memory.held == 0
    assert not world.loop.failures, world.loop.failures
    _check_records(world)
    world.ledger.check()
    world.ledger.check_sums()
