"""The benchmark of models that change under load, in its short form: no request fails, none has a wrong response."""

import dataclasses

import pytest

import lifecycle


def test_nothing_fails_while_models_change(capsys: pytest.CaptureFixture[str]) -> None:
    phases = [dataclasses.replace(phase, times=phase.short) for phase in lifecycle.PHASES]
    counts = lifecycle.run(phases, lifecycle.print_line)
    assert [count.said for count in counts] == [[]] * len(phases)
    assert [(count.failed, count.wrong) for count in counts] == [(0, 0)] * len(phases)
    assert min(min(count.http, count.grpc) for count in counts) > 10
    with capsys.disabled():
        print(f"\n{sum(count.http + count.grpc for count in counts):,} responses, 0 failed, 0 wrong")
