"""Arrays of 2^24 elements and more, where sizes of 24 bits end: every request is answered, in little memory."""

import json
import subprocess
import sys

import endless_arrays
import pytest

REFUSED = "the request has "
ELSEWHERE = (
    *("the document", "id", "inputs", "outputs", "outputs, compressed", "parameters", "a parameter", "shape"),
    *("datatype", "a tensor's parameter", "an unknown key", "data elsewhere"),
)


@pytest.mark.parametrize("count", [2**24 - 1, 2**24, 2**24 + 1, 20_000_000])
def test_endless_arrays(count: int) -> None:
    command = [sys.executable, endless_arrays.__file__, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    outcomes: dict[str, str] = json.loads(done.stdout)
    for name in ELSEWHERE:
        assert outcomes.pop(name).startswith(REFUSED), name
    one = "\\x07" * 5
    assert outcomes == {
        "UINT8": f"{count} bytes, b'{one}'",
        "UINT8, compressed": f"{count} bytes, b'{one}'",
        "nested": f"{count} bytes, b'{one}'",
        "INT64": f"{8 * count} bytes, b'" + "\\x00" * 5 + "'",
        "FP32": f"{4 * count} bytes, b'@\\x00\\x00\\xe0@'",
        "BOOL": f"{count} bytes, b'" + "\\x01" * 5 + "'",
        "BYTES": f"{5 * count} bytes, b'" + "\\x01\\x00\\x00\\x007" + "'",
    }
