"""The benchmark of models that change under load, in its short form: no request fails, none has a wrong response."""

import asyncio

import pytest

import lifecycle
from lifecycle_phases import SHORT_OUTAGE_S

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("stage", [*map(lifecycle.short_form, lifecycle.STAGES)], ids=lambda stage: stage.name)
def test_nothing_fails_while_models_change(stage: lifecycle.Stage, capsys: pytest.CaptureFixture[str]) -> None:
    if reason := lifecycle.lacking(stage):
        pytest.skip(reason)
    counts = asyncio.run(lifecycle.run(stage, lifecycle.print_line, SHORT_OUTAGE_S))
    assert [count.said for count in counts] == [[]] * len(stage.phases)
    assert [(count.failed, count.wrong) for count in counts] == [(0, 0)] * len(stage.phases)
    assert min(min(count.http, count.grpc) for count in counts) > 10
    with capsys.disabled():
        print(f"\n{sum(count.http + count.grpc for count in counts):,} responses, 0 failed, 0 wrong")
