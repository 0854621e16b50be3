"""Arrays of 2^24 elements and more, where sizes of 24 bits end: every request is answered, in little memory."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping

import endless_arrays
import pytest

REFUSED = "the request has "
ELSEWHERE = (
    *("the document", "id", "inputs", "outputs", "outputs, compressed", "parameters", "a parameter", "shape"),
    *("datatype", "a tensor's parameter", "an unknown key", "data elsewhere"),
)


EDGE = 2**24
PLACES = {EDGE - 1: ("UINT8",), EDGE: (), 20_000_000: ("the document", "outputs", "UINT8", "nested")}
"""The last size that 24 bits hold and one far beyond, in some places; the first that they do not hold, in all."""


@pytest.fixture(scope="module")
def processes() -> Iterator[Mapping[int, subprocess.Popen[str]]]:
    """They run at the same time."""
    running = {
        count: subprocess.Popen(
            [sys.executable, endless_arrays.__file__, str(count), *places],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for count, places in PLACES.items()
    }
    yield running
    for process in running.values():
        process.kill()
        process.communicate()


@pytest.mark.parametrize("count", PLACES)
def test_endless_arrays(count: int, processes: Mapping[int, subprocess.Popen[str]]) -> None:
    stdout, stderr = processes[count].communicate(timeout=300)
    assert processes[count].returncode == 0, stderr[-3000:]
    outcomes: dict[str, str] = json.loads(stdout)
    one = "\\x07" * 5
    expected = dict.fromkeys(ELSEWHERE, REFUSED) | {
        "UINT8": f"{count} bytes, b'{one}'",
        "UINT8, compressed": f"{count} bytes, b'{one}'",
        "nested": f"{count} bytes, b'{one}'",
        "INT64": f"{8 * count} bytes, b'" + "\\x00" * 5 + "'",
        "FP32": f"{4 * count} bytes, b'@\\x00\\x00\\xe0@'",
        "BOOL": f"{count} bytes, b'" + "\\x01" * 5 + "'",
        "BYTES": f"{5 * count} bytes, b'" + "\\x01\\x00\\x00\\x007" + "'",
    }
    if PLACES[count]:
        expected = {name: text for name, text in expected.items() if name.removesuffix(", compressed") in PLACES[count]}
    assert {name: REFUSED if text.startswith(REFUSED) else text for name, text in outcomes.items()} == expected
