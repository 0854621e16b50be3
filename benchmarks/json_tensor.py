"""What a large tensor costs as JSON: server CPU of a request with an image of FP32 [1, 3, 224, 224].

    python benchmarks/json_tensor.py            # some seconds
    python benchmarks/json_tensor.py --write    # and puts the table into benchmarks/results/tables.md

A server serves a model that returns its input. CPU time of its process over the requests, one at a time; beside it,
what the JSON library alone takes to read the same body.
"""

import argparse
import statistics
import tempfile
import time
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import orjson

from overhead import ServerProcess, put_into_report, server

SHAPE = (1, 3, 224, 224)
CONFIG = """\
backend: "identity"
max_batch_size: 1
input [ { name: "IN", data_type: TYPE_FP32, dims: [ 3, 224, 224 ] } ]
output [ { name: "OUT", data_type: TYPE_FP32, dims: [ 3, 224, 224 ] } ]
"""


def write_repository(directory: Path) -> None:
    (directory / "image" / "1").mkdir(parents=True)
    (directory / "image" / "config.pbtxt").write_text(CONFIG, encoding="utf-8")


def bodies() -> dict[str, bytes]:
    """Request bodies by what they ask for."""
    image = np.random.default_rng(0).random(SHAPE, np.float32)
    found = {}
    for answer, binary in (("JSON", False), ("binary", True)):
        for form, data in (("flat", image.reshape(-1)), ("nested", image)):
            document = {
                "inputs": [{"name": "IN", "datatype": "FP32", "shape": SHAPE, "data": data}],
                "outputs": [{"name": "OUT", "parameters": {"binary_data": binary}}],
            }
            found[f"JSON in ({form}), {answer} out"] = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    return found


def cpu_ms(target: ServerProcess, body: bytes, requests: int) -> float:
    """Milliseconds of the server's CPU a request."""
    with closing(HTTPConnection("localhost", target.http)) as connection:
        before = target.cpu_seconds()
        for _ in range(requests):
            connection.request("POST", "/v2/models/image/infer", body)
            answer = connection.getresponse()
            if answer.status != 200:
                raise SystemExit(f"status {answer.status}: {answer.read(200)!r}")
            answer.read()
        return (target.cpu_seconds() - before) / requests * 1e3


def parse_ms(body: bytes, requests: int) -> float:
    before = time.process_time()
    for _ in range(requests):
        orjson.loads(body)
    return (time.process_time() - before) / requests * 1e3


def table(rounds: int, requests: int) -> str:
    """All kinds in each round, one after the other: a slow moment of the machine is shared by all."""
    asked = bodies()
    first = next(iter(asked.values()))
    measured: dict[str, list[float]] = {name: [] for name in asked}
    alone: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        write_repository(Path(directory))
        with server(Path(directory)) as target:
            cpu_ms(target, first, requests)
            for _ in range(rounds):
                alone.append(parse_ms(first, requests))
                for name, body in asked.items():
                    measured[name].append(cpu_ms(target, body, requests))
    measured[f"`orjson.loads` of such a body ({len(first) / 1e6:.1f} MB) alone"] = alone
    rows = [_row(name, found, alone) for name, found in measured.items()]
    head = f"| | CPU a request, median of {rounds} rounds (least) | times `orjson.loads` of the same round |"
    return "\n".join([head, "|---|---|---|", *rows])


def _row(name: str, found: list[float], alone: list[float]) -> str:
    ratio = statistics.median(one / other for one, other in zip(found, alone, strict=True))
    return f"| {name} | {statistics.median(found):.1f} ms ({min(found):.1f}) | {ratio:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="runs of each kind, of which the median counts")
    parser.add_argument("--requests", type=int, default=20, help="requests of each run")
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/results/tables.md")
    arguments = parser.parse_args()
    text = table(arguments.rounds, arguments.requests)
    print(text)
    if arguments.write:
        put_into_report("json_tensor.py", text)


if __name__ == "__main__":
    main()
