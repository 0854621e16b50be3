"""How long `modserve load --url` of many servers takes, beside the slowest of them alone.

    python benchmarks/fleet_control.py --write      # 20 real servers on this machine, two minutes

Each server has a model that takes its own time to load, from half a second to two, in which it waits: on machines of
their own they would not take each other's CPU time either. The model is loaded on each server alone and then on all at
once, by the command as users call it, so that its own start is in all figures.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from gateway_stage import ModelServer
from overhead import put_into_report

PAGE = Path(__file__).resolve().parent / "results" / "tables.md"
MODEL = "slow_to_load"
_FIRST_S, _LAST_S = 0.5, 2.0
_OPTIONS = ("--model-control-mode=explicit", "--allow-grpc=false")


def delays(count: int) -> list[float]:
    """Seconds that the model takes on each server; the slowest is in the middle of the row."""
    steps = [_FIRST_S + (_LAST_S - _FIRST_S) * index / max(1, count - 1) for index in range(count)]
    return steps[::2] + steps[1::2][::-1]


@contextmanager
def servers(folder: Path, seconds: Sequence[float]) -> Iterator[list[ModelServer]]:
    """One for each delay, ready and without the model."""
    every = []
    for number, delay in enumerate(seconds):
        repository = folder / str(number)
        write_model(repository / MODEL, delay)
        every.append(ModelServer([repository], folder / f"{number}.log", _OPTIONS))
    try:
        for server in every:
            server.start()
        for server in every:
            server.wait_until_ready()
        yield every
    finally:
        for server in every:
            server.program.dispose()


def write_model(folder: Path, delay: float) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(
        'backend: "identity"\n'
        'input { name: "INPUT0" data_type: TYPE_FP32 dims: 1 }\n'
        'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 1 }\n'
        f'parameters {{ key: "creation_delay_sec" value {{ string_value: "{delay:g}" }} }}\n'
    )


def timed(command: str, row: Sequence[ModelServer]) -> float:
    """Seconds of a command for these servers."""
    urls = ",".join(f"http://127.0.0.1:{server.http_port}" for server in row)
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "modserve", command, MODEL, "--url", urls], capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(f"modserve {command} failed:\n{done.stdout}{done.stderr}")
    return seconds


def measured(count: int, rounds: int) -> str:
    """The table, of the medians of the rounds."""
    singles: list[list[float]] = [[] for _ in range(count)]
    joint: list[float] = []
    with tempfile.TemporaryDirectory() as folder, servers(Path(folder), delays(count)) as row:
        for _ in range(rounds):
            for server, seconds in zip(row, singles, strict=True):
                seconds.append(timed("load", [server]))
            timed("unload", row)
            joint.append(timed("load", row))
            timed("unload", row)
    alone = [median(seconds) for seconds in singles]
    rows = (
        ("the quickest server alone", min(alone)),
        ("the slowest server alone", max(alone)),
        (f"all {count} at once", median(joint)),
        (f"all {count} one after the other", sum(alone)),
    )
    lines = [f"| {name} | {seconds:.2f} s | {seconds / max(alone):.2f} |" for name, seconds in rows]
    return "\n".join(["| `modserve load` | time | of the slowest |", "|---|--:|--:|", *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/results/tables.md")
    options = parser.parse_args()
    if options.servers < 2 or options.rounds < 1:
        parser.error("expected two servers or more, and a round or more")
    text = measured(options.servers, options.rounds)
    print(text)
    if options.write:
        put_into_report("fleet_control.py", text, PAGE)


if __name__ == "__main__":
    main()
