"""Engines that say whether they are ready: who is asked, how long it may take, and what the log says."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modserve import InferenceServer, InstanceSpec, ModelSource, ModserveError, Settings
from modserve.backends.identity import IdentityBackend, IdentityInstance, IdentityModel
from modserve.core.version import ModelId
from modserve.models.serving.readiness import ReadinessCheck
from modserve.testing import write_model

PATIENT, IMPATIENT = 30.0, 0.01

Say = Callable[[], Awaitable[Any]]


class Asked:
    """An instance that says what the test has it say, and counts how often it is asked."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self.times = 0

    async def check_ready(self) -> Any:
        self.times += 1
        return await self.say()


async def yes() -> bool:
    return True


async def no() -> bool:
    return False


async def fails() -> bool:
    raise OSError("no database")


async def never() -> bool:
    await asyncio.Event().wait()
    return True


async def maybe() -> Any:
    return "yes"


class Silent:
    """An instance that has nothing to say."""


def checking(*instances: object, limit_seconds: float = PATIENT) -> ReadinessCheck:
    executors: list[Any] = [(f"m_{number}", instance) for number, instance in enumerate(instances)]
    return ReadinessCheck(ModelId("m", 1), lambda: executors, limit_seconds)


@pytest.mark.parametrize(
    ("says", "ready"),
    [
        ([], True),
        ([yes], True),
        ([yes, yes], True),
        ([no], False),
        ([yes, no], False),
        ([fails], False),
        ([maybe], False),
    ],
)
async def test_all_must_be_ready(says: list[Say], ready: bool) -> None:
    check = checking(Silent(), *map(Asked, says))
    assert await check.check() is ready
    assert await check.check() is ready


async def test_one_that_does_not_say() -> None:
    hangs, other = Asked(never), Asked(yes)
    check = checking(hangs, other, limit_seconds=IMPATIENT)
    assert not await check.check()
    hangs.say = yes
    assert await check.check()
    assert (hangs.times, other.times) == (2, 2)


async def test_one_that_cannot_be_stopped_is_not_asked_again_until_it_has_ended() -> None:
    go = asyncio.Event()

    async def stubborn() -> bool:
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue
        return True

    hangs = Asked(stubborn)
    check = checking(hangs, limit_seconds=IMPATIENT)
    assert not await check.check()
    assert not await check.check()
    assert hangs.times == 1
    go.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert await check.check()
    assert hangs.times == 2


async def test_those_who_ask_at_the_same_time_share_a_check() -> None:
    go = asyncio.Event()

    async def held() -> bool:
        await go.wait()
        return True

    one = Asked(held)
    check = checking(one)
    asking = [asyncio.create_task(check.check()) for _ in range(3)]
    await asyncio.sleep(0)
    asking.pop().cancel()  # which harms nobody else
    await asyncio.sleep(0)
    go.set()
    assert await asyncio.gather(*asking) == [True, True]
    assert one.times == 1
    assert await check.check()
    assert one.times == 2


async def test_closing_ends_a_check() -> None:
    check = checking(Asked(never), Asked(yes))
    asking = asyncio.create_task(check.check())
    for _ in range(3):
        await asyncio.sleep(0)
    check.close()
    assert await asking is False
    check.close()


async def test_the_log_has_a_line_for_each_change(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "modserve.models.serving.readiness")
    one = Asked(yes)
    check = checking(one, limit_seconds=IMPATIENT)
    for say in (yes, yes, no, no, fails, fails, never, never, maybe, yes, yes, no):
        one.say = say
        await check.check()
    not_ready = "model 'm', version 1: not ready: instance 'm_0' "
    assert caplog.messages == [
        not_ready + "says so",
        not_ready + "failed to report whether it is: OSError: no database",
        not_ready + "has not reported within 0.01 s whether it is ready",
        not_ready + "failed to report whether it is: TypeError: 'check_ready' returned 'yes', expected True or False",
        "model 'm', version 1: its instances say that it is ready again",
        not_ready + "says so",
    ]


# In a server

CONFIG = """
backend: "asked"
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
"""


class AskedBackend(IdentityBackend):
    """The second instance says `ready`."""

    ready = True
    times = 0
    source: ModelSource

    def open(self, source: ModelSource) -> IdentityModel:
        self.source = source
        return AskedModel(self)


class AskedModel(IdentityModel):
    def __init__(self, backend: AskedBackend) -> None:
        super().__init__()
        self._backend = backend

    def instance(self, spec: InstanceSpec) -> IdentityInstance:
        made = super().instance(spec)
        made.check_ready = self._check_ready if spec.index else yes  # type: ignore[attr-defined]
        return made

    async def _check_ready(self) -> bool:
        self._backend.times += 1
        return self._backend.ready


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as made:
        yield made


@pytest.mark.parametrize("extra", ["", "dynamic_batching { preserve_ordering: true }"], ids=["plain", "behind another"])
async def test_the_readiness_of_a_model(stack: AsyncExitStack, tmp_path: Path, extra: str) -> None:
    backend = AskedBackend()
    write_model(tmp_path, "asked", "max_batch_size: 2" + CONFIG + extra)
    write_model(tmp_path, "plain", CONFIG.replace("asked", "identity"))
    backends: Any = {"asked": backend}
    server = await stack.enter_async_context(
        InferenceServer(Settings(model_repository=(tmp_path,), model_control_mode="explicit"), backends=backends)
    )
    with pytest.raises(ModserveError, match="unknown model: 'asked'"):
        await server.check_model_ready("asked", None)
    for name in ("asked", "plain"):
        await server.load_model(name)
    models = backend.source.models
    for ready in (True, False, True):
        backend.ready = ready
        assert await server.check_model_ready("asked", None) is ready
        assert await server.check_model_ready("asked", 1) is ready
        assert await asyncio.wrap_future(models.is_ready("asked")) is ready
        assert await server.check_model_ready("plain", None)
        assert server.model_ready("asked", None)
        assert server.ready
        inputs = {"INPUT": np.ones((1, 2), np.float32)}
        assert (await server.infer("asked", inputs)).outputs["OUTPUT"].array.tolist() == [[1.0, 1.0]]
    assert backend.times == 9
    with pytest.raises(RuntimeError, match="cannot be awaited on the event loop's thread"):
        models.is_ready("asked").result()
    await asyncio.sleep(0)
    with pytest.raises(ModserveError, match="unknown model: 'nobody'"):
        await server.check_model_ready("nobody", None)
    server.stop_accepting()
    assert not await server.check_model_ready("asked", None)
