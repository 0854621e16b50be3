"""The stress run of benchmarks/, for a few seconds: nothing is lost, and no answer is wrong."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

import stress
from overhead import server

pytestmark = pytest.mark.slow

PATIENCE = (
    ("direct", "max_batch_size: 4\n", "max_batch_size: 512\n"),
    ("direct", "max_sequence_idle_microseconds: 1000000 ", "max_sequence_idle_microseconds: 600000000 "),
    ("oldest", "max_candidate_sequences: 4 ", "max_candidate_sequences: 1024 "),
    ("oldest", "max_sequence_idle_microseconds: 1000000 ", "max_sequence_idle_microseconds: 600000000 "),
)
"""Of a model's configuration: on a busy machine a client may be late by more than a second, and has not left its
sequence. Those that are left keep their places, so there are enough."""


def forget_nothing(repository: Path) -> None:
    for model, before, after in PATIENCE:
        config = repository / model / "config.pbtxt"
        text = config.read_text()
        assert before in text
        config.write_text(text.replace(before, after))


def test_every_request_is_answered_refused_or_cancelled(tmp_path: Path) -> None:
    stress.write_repository(tmp_path)
    forget_nothing(tmp_path)
    with server(tmp_path) as target:
        tallies = asyncio.run(stress.drive(target, seconds=4, clients=16, seed=0))
        waiting, counts = stress.pending(target, patience=20), stress.statistics(target)
        os.kill(target.pid, signal.SIGKILL)  # it would wait for the sequences that were left in the middle
    for kind, tally in tallies.items():
        assert tally.wrong == [], kind
        assert tally.adds_up, kind
        assert tally.answered, kind
    assert waiting == 0
    # What the clients have seen answered, the server counts as such; of those given up it may have answered some.
    singles = tallies["HTTP"].answered + tallies["gRPC"].answered
    assert singles <= counts["simple"][0]
    assert tallies["sequences"].answered == counts["direct"][0] + counts["oldest"][0]
    assert tallies["ensembles"].answered <= counts["digits_pipeline"][0]
