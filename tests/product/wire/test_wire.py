"""Everything that a running server knows, in any order, over the wire: `RuleBasedStateMachine` draws what happens.

`PRODUCT_SECONDS` goes on for so long with other seeds than the fixed one, beginning with `PRODUCT_SEED`.
"""

import os
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from product.wire import models
from product.wire.clients import STREAM_WAYS, WAYS
from product.wire.product import Product
from product.wire.questions import Question
from product.wire.settings import SETTINGS

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("PRODUCT_SECONDS", "0"))
SEED = int(os.environ.get("PRODUCT_SEED", "1"))

_changeable = st.sampled_from([*models.FORMS])
_models = st.sampled_from(models.ECHOES)
_ways = st.sampled_from(WAYS)
_ms = st.sampled_from([0, 0, 1, 20, 60])


class Servers:
    """A server with one setting, used by one example after the other; a new one when it was hurt."""

    def __init__(self, directories: pytest.TempPathFactory, setting: str) -> None:
        self._directories = directories
        self.setting = setting
        self._product: Product | None = None

    def get(self) -> Product:
        if self._product is None:
            self._product = Product(self._directories.mktemp("product"), SETTINGS[self.setting])
        return self._product

    def drop(self) -> None:
        product, self._product = self._product, None
        if product is not None:
            product.dispose()

    def close(self) -> None:
        """The end in order."""
        try:
            if self._product is not None:
                self._product.stop()
        finally:
            self.drop()


class WireMachine(RuleBasedStateMachine):
    servers: ClassVar[Servers]
    first: ClassVar[BaseException | None] = None
    """What was found. A real server does not do the same a second time, so that this is not tried."""

    def __init__(self) -> None:
        super().__init__()
        self.product: Product
        self.cancels: list[Callable[[], object]] = []
        self.slow_readers = 0
        self.hurt = False

    def step(self, text: str, action: Callable[[], Any]) -> Any:
        self.product.story.append(text)
        try:
            return action()
        except BaseException as error:
            self.hurt = True
            WireMachine.first = WireMachine.first or error
            raise

    @initialize()
    def begin(self) -> None:
        if WireMachine.first is not None:
            raise WireMachine.first
        self.product = self.servers.get()
        self.product.story = [f"a server with {self.servers.setting}"]

    # Requests

    @rule(model=_models, ways=st.lists(_ways, min_size=1, max_size=8), ms=_ms)
    def send(self, model: str, ways: list[str], ms: int) -> None:
        self.step(f"send {model}, {ways}, {ms} ms", lambda: [self.product.send(model, way, ms) for way in ways])

    @rule(ways=st.lists(_ways, min_size=1, max_size=4))
    def send_to_all_large(self, ways: list[str]) -> None:
        pairs = [(name, way) for way in ways for name in models.LARGE]
        self.step(f"all large models by {ways}", lambda: [self.product.send(name, way) for name, way in pairs])

    @rule(version=st.sampled_from(["", "1", "2"]), way=_ways, ms=st.sampled_from([0, 13]), count=st.integers(1, 12))
    def send_to_versions(self, version: str, way: str, ms: int, count: int) -> None:
        def send() -> None:
            for _ in range(count):
                self.product.send(models.VERSIONS, way, ms, version=version)

        self.step(f"{count} to version '{version}', {way}, {ms}", send)

    @rule(way=st.sampled_from(STREAM_WAYS), count=st.integers(0, 20), pause_ms=st.sampled_from([0, 0, 5]))
    def send_stream(self, way: str, count: int, pause_ms: int) -> None:
        self.step(f"{way}, {count} responses", lambda: self.product.send_stream(way, count, pause_ms))

    @rule(count=st.integers(1, 6), over_grpc=st.booleans())
    def send_sequence(self, count: int, over_grpc: bool) -> None:
        values = list(range(1, count + 1))
        self.step(f"a sequence of {count}", lambda: self.product.clients.send_sequence(values, over_grpc))

    @rule(model=_models, way=st.sampled_from(["kept connection", "tritonclient.http", "shared stream"]), ms=_ms)
    def send_with_timeout(self, model: str, way: str, ms: int) -> None:
        self.step(f"{model} by {way} within 5 ms", lambda: self.product.send(model, way, ms, timeout_us=5000))

    @rule(model=_models, ms=_ms, deadline_ms=st.sampled_from([1, 5, 50]))
    def send_with_deadline(self, model: str, ms: int, deadline_ms: int) -> None:
        self.step(
            f"{model} by gRPC within {deadline_ms} ms",
            lambda: self.product.send(model, "tritonclient.grpc", ms, deadline_s=deadline_ms / 1000),
        )

    @rule(model=_models, count=st.integers(1, 6), ms=_ms, at_once=st.booleans(), then=st.lists(_ways, max_size=3))
    def send_cancellable(self, model: str, count: int, ms: int, at_once: bool, then: list[str]) -> None:
        def send() -> None:
            for _ in range(count):
                number = self.product.ledger.number()
                first = number % 5 if model == models.CACHED else number
                _, cancel = self.product.clients.send_cancellable(Question(model, number, (first, ms)))
                self.cancels.append(cancel)
            if at_once:
                self._cancel_all()
            for way in then:
                self.product.send(model, way, ms)

        self.step(f"{count} to {model} that may be cancelled{' at once' * at_once}, then {then}", send)

    @rule(model=_models, ms=_ms, timeout_ms=st.sampled_from([0, 1, 30]), way=_ways)
    def send_and_take_back(self, model: str, ms: int, timeout_ms: int, way: str) -> None:
        """By a deadline, or by a reset; and somebody else's request comes after it."""

        def send() -> None:
            number = self.product.ledger.number()
            question = Question(model, number, (number % 5 if model == models.CACHED else number, ms))
            if timeout_ms:
                self.product.clients.send_frames(question, timeout_ms)
            else:
                self.product.clients.reset(question)
            self.product.send(model, way, ms)

        self.step(f"{model} by frames, deadline {timeout_ms} ms or a reset, then {way}", send)

    @precondition(lambda self: self.cancels)
    @rule()
    def cancel(self) -> None:
        self.step("cancel all", self._cancel_all)

    def _cancel_all(self) -> None:
        for each in self.cancels:
            each()
        self.cancels.clear()

    @rule(model=_models, share=st.sampled_from([0.3, 0.7, 1.0]), abruptly=st.booleans(), ms=_ms, stream=st.booleans())
    def leave(self, model: str, share: float, abruptly: bool, ms: int, stream: bool) -> None:
        def leave() -> None:
            number = self.product.ledger.number()
            if stream:
                question = Question(models.MANY, number, (number, 50, 5, 100), batched=False)
                self.product.clients.leave(question, share, abruptly, "generate_stream")
            else:
                self.product.clients.leave(Question(model, number, (number % 5, ms)), share, abruptly)

        self.step(f"a client of {model} leaves after {share:.0%}, abruptly: {abruptly}, stream: {stream}", leave)

    @rule(count=st.integers(1, 30), width=st.sampled_from([1, 20_000]))
    def read_slowly(self, count: int, width: int) -> None:
        self.slow_readers += 1
        self.step(f"a slow reader of {count} times {width}", lambda: self.product.send_slow_reader(count, width))

    @precondition(lambda self: self.slow_readers)
    @rule()
    def read_on(self) -> None:
        def go_on() -> None:
            self.product.clients.on.set()
            self.product.clients.on.clear()
            self.slow_readers = 0

        self.step("slow readers go on", go_on)

    # Orders

    @rule(model=_changeable, places=st.lists(st.integers(0, 31), min_size=1, max_size=3), at_once=st.booleans())
    def change(self, model: str, places: list[int], at_once: bool) -> None:
        forms = [place % len(models.FORMS[model]) for place in places]
        self.step(
            f"change {model} to {forms}, at once: {at_once}",
            lambda: self.product.change(model, forms, at_once=at_once),
        )

    @rule(
        model=st.sampled_from([models.QUEUED, models.QUEUED, models.SLOW]),
        places=st.lists(st.integers(0, 31), min_size=2, max_size=3),
        ways=st.lists(_ways, min_size=4, max_size=12),
        at_once=st.booleans(),
    )
    def change_while_requests_wait(self, model: str, places: list[int], ways: list[str], at_once: bool) -> None:
        forms = [place % len(models.FORMS[model]) for place in places]

        def send() -> None:
            for way in ways:
                self.product.send(model, way, 70)

        self.step(
            f"around the changes of {model} to {forms}, at once: {at_once}, {len(ways)} requests each time",
            lambda: self.product.change(model, forms, at_once=at_once, around=send),
        )

    @rule(model=_changeable)
    def load_other_files(self, model: str) -> None:
        self.step(f"load {model} with other files", lambda: self.product.load_other_files(model))

    @rule(model=_changeable)
    def load_broken(self, model: str) -> None:
        self.step(f"load {model} with a broken configuration", lambda: self.product.load_broken(model))

    @rule(model=_changeable, ways=st.lists(_ways, max_size=4))
    def unload(self, model: str, ways: list[str]) -> None:
        def unload() -> None:
            disturbance = self.product.unload(model)
            for way in ways:
                if model in models.ECHOES:
                    self.product.send(model, way)
            self.product.must_load(model)
            for user, used in models.USES.items():
                if model in used:
                    self.product.must_load(user)
            disturbance.close()

        self.step(f"unload {model}, send to it by {ways}, load it", unload)

    @rule(model=st.sampled_from(models.PROCESSES), place=st.integers(0, 3))
    def kill(self, model: str, place: int) -> None:
        self.step(f"kill a process of {model}", lambda: self.product.kill(model, place))

    @rule(weights=st.sampled_from([(1, 1), (9, 1), (0, 1), (1, 0)]), rollback=st.booleans(), shadow=st.booleans())
    def route(self, weights: tuple[int, int], rollback: bool, shadow: bool) -> None:
        routing: dict[str, Any] = {"split": {"1": weights[0], "2": weights[1]}}
        if rollback and all(weights):  # another version has to take its place
            routing["rollback"] = {"version": 2, "error_share": 0.1, "least_requests": 3, "last_requests": 10}
        if shadow and not weights[0]:  # what serves clients is no shadow
            routing["shadow"] = {"version": 1, "share": 0.5}
        self.step(f"route {routing}", lambda: self.product.route(routing))

    @rule()
    def route_no_more(self) -> None:
        self.step("no routing", lambda: self.product.route(None))

    @rule()
    def quiesce(self) -> None:
        self.step("all come to rest", self._quiesce)

    def _quiesce(self) -> None:
        self.cancels.clear()
        self.product.quiesce()

    @rule(
        count=st.integers(0, 10),
        ms=st.sampled_from([20, 100]),
        racers=st.integers(0, 4),
        uploads=st.integers(0, 3),
        drains=st.booleans(),
        loads=st.sampled_from(["", "", models.VERSIONS, models.MANY]),
    )
    def restart(self, count: int, ms: int, racers: int, uploads: int, drains: bool, loads: str) -> None:
        def restart() -> None:
            self.cancels.clear()
            self.product.restart(count, ms, racers, uploads=uploads, drains=drains, loads=loads)

        under_way = f"{count} under way, {uploads} that arrive and {racers} that go on"
        text = f"{'a drain, then ' * drains}SIGTERM with {under_way}"
        self.step(f"{text}{f', during a load of {loads}' * bool(loads)}, and a new start", restart)

    def teardown(self) -> None:
        if not hasattr(self, "product"):
            return
        try:
            if not self.hurt:
                self.step("the end", self._restore)
        finally:
            if self.hurt:
                self.servers.drop()

    def _restore(self) -> None:
        self.cancels.clear()
        self.product.restore()


@pytest.fixture(params=SETTINGS)
def servers(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Servers]:
    made = Servers(tmp_path_factory, request.param)
    WireMachine.servers, WireMachine.first = made, None
    yield made
    made.close()


def _settings(examples: int, steps: int, fixed: bool) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=fixed,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
        print_blob=False,
    )


def test_whatever_happens_each_request_has_one_outcome(servers: Servers) -> None:
    try:
        if not SECONDS:
            run_state_machine_as_test(WireMachine, settings=_settings(1, 20, True))
        end, number = time.monotonic() + SECONDS, SEED
        while time.monotonic() < end:
            print(f"seed {number}", flush=True)
            run_state_machine_as_test(seed(number)(WireMachine), settings=_settings(5, 60, False))
            number += 1
    except BaseException:
        if WireMachine.first is not None:
            raise WireMachine.first from None
        raise
