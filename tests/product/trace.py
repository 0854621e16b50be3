"""Everything that happens in some runs of the machine, line by line: ``python -m product.trace SEED RUNS``."""

import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

from hypothesis import Verbosity, seed, settings
from hypothesis.reporting import with_reporter
from hypothesis.stateful import get_state_machine_test

from modserve.core.requests.response import InferenceResponse, Outcome

from .ledger import Entry
from .machine import ProductMachine
from .simulation import NumberedTask, SimulatedLoop
from .test_product import thorough

_CHOSEN = re.compile(r"/tmp/product\S*|0x[0-9a-f]+|\[X-Request-ID [^]]*\]")
"""Names of folders, addresses and ids, which are others in each process and mean nothing."""


def main() -> None:
    def note(text: str) -> None:
        print(_CHOSEN.sub("…", text))

    def step(text: object) -> None:
        if isinstance(text, str) and text.startswith("state"):
            note(text)

    call_soon, call_at, settle = SimulatedLoop.call_soon, SimulatedLoop.call_at, Entry.settle

    def noted_soon(loop: SimulatedLoop, callback: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        note(f"{loop.now_ns} soon: {_name(callback)}")
        return call_soon(loop, callback, *arguments, **more)

    def noted_at(loop: SimulatedLoop, when: float, callback: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        note(f"{loop.now_ns} at {when}: {_name(callback)}")
        return call_at(loop, when, callback, *arguments, **more)

    def noted_settle(entry: Entry, outcome: Outcome, final: bool) -> None:
        content = outcome.outputs["OUT"].array.tolist() if isinstance(outcome, InferenceResponse) else repr(outcome)
        note(f"settled: {entry!r} with {content}, final: {final}")
        settle(entry, outcome, final)

    test = get_state_machine_test(
        ProductMachine, settings=settings(thorough(int(sys.argv[2])), verbosity=Verbosity.debug)
    )
    with (
        with_reporter(step),
        patch.object(SimulatedLoop, "call_soon", noted_soon),
        patch.object(SimulatedLoop, "call_at", noted_at),
        patch.object(Entry, "settle", noted_settle),
    ):
        seed(int(sys.argv[1]))(test)()


def _name(callback: Any) -> str:
    if isinstance(callback, partial):
        return f"{_name(callback.func)} of {[_name(each) for each in callback.args if callable(each)]}"
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, NumberedTask):
        return f"task {owner.number}, {getattr(owner.get_coro(), '__qualname__', '')}"
    return str(getattr(callback, "__qualname__", type(callback).__name__))


if __name__ == "__main__":
    main()
