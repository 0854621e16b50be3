"""Bodies over HTTP that are small on the wire: what they become is refused, or paid for out of the server's memory."""

import gzip
import json
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest
from server_process import ServerProcess
from wire import infer_path

from attack.measuring import Limits, attacked
from attack.sending import GOOD, GZIP, INFER, REFUSALS, assert_answers, dialled, gzipped, post, read_to_end, statuses

_ZEROS = [bytes(1 << 20)]
_DEFLATE = {"Content-Encoding": "deflate"}
_EMPTY: Final = gzip.compress(b"", mtime=0)


def deflated(megabytes: int, wbits: int) -> bytes:
    packer = zlib.compressobj(9, wbits=wbits)
    return b"".join([*(packer.compress(_ZEROS[0]) for _ in range(megabytes)), packer.flush()])


BOMBS: Final[dict[str, tuple[Callable[[], bytes], dict[str, str]]]] = {
    "128 MB in zlib's format": (lambda: deflated(128, 15), _DEFLATE),
    "128 MB of raw deflate": (lambda: deflated(128, -15), _DEFLATE),
    "100,000 empty members": (lambda: _EMPTY * 100_000, GZIP),
    "a good body behind 100,000 empty members": (lambda: _EMPTY * 100_000 + gzip.compress(GOOD), GZIP),
    "a good body, and 128 MB behind it": (lambda: gzip.compress(GOOD) + gzipped(_ZEROS * 128), GZIP),
    "a good body, and bytes that are no member": (lambda: gzip.compress(GOOD) + b"x" * 1_000_000, GZIP),
    "a file's name of 10 MB": (lambda: b"\x1f\x8b\x08\x08" + bytes(6) + b"n" * (10 << 20), GZIP),
    "blocks of nothing": (lambda: b"\x1f\x8b\x08" + bytes(7) + b"\x00\x00\x00\xff\xff" * 1_000_000, GZIP),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(server: ServerProcess, name: str) -> None:
    make, headers = BOMBS[name]
    body = make()
    with attacked(server, f"HTTP: {name}, {len(body):,} B", Limits(peak_mb=96, cpu_seconds=4)):
        status = post(server, INFER, body, headers).status
        assert status in REFUSALS | {200}
        assert status != 200 or "good" in name
    assert_answers(server)


def test_tensors_of_zeros(server: ServerProcess) -> None:
    """60 of 10 MB at once, where there is room for 512 MB: refused, or served one after the other."""
    count = 2_500_000
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, count], "parameters": {"binary_data_size": 4 * count}}
    header = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    body = gzipped([header, *_ZEROS * (4 * count >> 20), bytes(4 * count & (1 << 20) - 1)])
    headers = {**GZIP, "Inference-Header-Content-Length": str(len(header))}
    limits = Limits(peak_mb=900, cpu_seconds=15, left_mb=300)
    with attacked(server, "HTTP: 60 x 10 MB of zeros", limits), ThreadPoolExecutor(60) as pool:
        answers = [pool.submit(post, server, infer_path("numbers"), body, headers) for _ in range(60)]
        codes = {answer.result().status for answer in answers}
    assert codes <= REFUSALS | {200}
    assert_answers(server)


def test_a_bomb_that_trickles(server: ServerProcess) -> None:
    """In chunks of some bytes, each of which becomes a megabyte."""
    bomb = gzipped(_ZEROS * 128)
    head = (
        b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n" % INFER.encode()
    )
    chunks = [bomb[at : at + 1_000] for at in range(0, len(bomb), 1_000)]
    with (
        attacked(server, "HTTP: a bomb in small chunks", Limits(peak_mb=96, cpu_seconds=4)),
        dialled(server.http_port) as connection,
    ):
        try:
            connection.sendall(head)
            for chunk in chunks:
                connection.sendall(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            connection.sendall(b"0\r\n\r\n")
            connection.shutdown(1)
        except ConnectionError:
            pass
        assert set(statuses(read_to_end(connection))) <= REFUSALS
    assert_answers(server)
