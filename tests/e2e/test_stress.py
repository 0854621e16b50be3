"""The stress run of benchmarks/, for a few seconds: nothing is lost, and no answer is wrong."""

import asyncio
from pathlib import Path

import stress
from overhead import server


def test_every_request_is_answered_refused_or_cancelled(tmp_path: Path) -> None:
    stress.write_repository(tmp_path)
    with server(tmp_path) as target:
        tallies = asyncio.run(stress.drive(target, seconds=4, clients=16, seed=0))
        waiting, counts = stress.pending(target), stress.statistics(target)
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
