"""Downloads: checked, tried again, continued, and shared."""

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from remote_fixtures import PLACE, Clock, a_file, incoming

from modserve.core.errors import Code, ModserveError
from modserve.repository.remote.cache import DownloadCache
from modserve.repository.remote.failures import StoreError, broken
from modserve.repository.remote.transfer import Download, DownloadProgress, Patience, RemoteFile, Transfer, in_bytes

CONTENT = b"0123456789"


@pytest.fixture
def transfer(tmp_path: Path) -> Transfer:
    return Transfer(DownloadCache(tmp_path), Patience(timeout_s=5, attempts=3, pause_s=0))


class Sender:
    """Sends what it is made with, one answer for each opening; an exception stands for a failed opening."""

    def __init__(self, *answers: Download | Exception) -> None:
        self._answers: Iterator[Download | Exception] = iter(answers)
        self.offsets: list[int] = []

    async def __call__(self, offset: int) -> Download:
        self.offsets.append(offset)
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def bring(transfer: Transfer, file: RemoteFile, sender: Sender) -> tuple[bytes, int]:
    """The content that arrives, and how many bytes the progress has in the end."""
    counts: list[int] = []
    digest = await transfer.bring(PLACE, file, sender, counts.append)
    return transfer.cache.content(digest).read_bytes(), sum(counts)


async def fails(transfer: Transfer, file: RemoteFile, sender: Sender) -> StoreError:
    with pytest.raises(StoreError) as caught:
        await bring(transfer, file, sender)
    assert caught.value.code is Code.UNAVAILABLE
    assert caught.value.message.startswith(f"cannot download '{file.path}' from 's3://bucket/models': ")
    assert transfer.cache.find(file.source) is None
    return caught.value


async def test_a_file_is_downloaded_once(transfer: Transfer) -> None:
    file = a_file("m/1/model", CONTENT)
    sender = Sender(incoming(file, b"01234", b"56789"))
    assert await bring(transfer, file, sender) == (CONTENT, 10)
    assert await bring(transfer, file, sender) == (CONTENT, 10)
    assert sender.offsets == [0]


async def test_several_that_want_the_same_file(transfer: Transfer) -> None:
    file = a_file("m/1/model", CONTENT)
    sender = Sender(incoming(file, CONTENT))
    both: Iterable[tuple[bytes, int]] = await asyncio.gather(
        bring(transfer, file, sender), bring(transfer, file, sender)
    )
    assert list(both) == [(CONTENT, 10), (CONTENT, 10)]
    assert sender.offsets == [0]


async def test_an_empty_file(transfer: Transfer) -> None:
    file = a_file("m/1/model", b"")
    assert await bring(transfer, file, Sender(incoming(file))) == (b"", 0)


async def test_a_transfer_that_breaks_off_goes_on_from_there(transfer: Transfer) -> None:
    file = a_file("m/1/model", CONTENT)
    off = broken(PLACE, file.path, "the transfer was interrupted")
    sender = Sender(incoming(file, b"0123", off), incoming(file, b"45"), incoming(file, b"6789"))
    assert await bring(transfer, file, sender) == (CONTENT, 10)
    assert sender.offsets == [0, 4, 6]


async def test_a_transfer_that_breaks_off_each_time(transfer: Transfer) -> None:
    file = a_file("m/1/model", CONTENT)
    sender = Sender(*(incoming(file) for _ in range(3)))
    failure = await fails(transfer, file, sender)
    assert failure.message.endswith("the transfer ended after 0 of 10 bytes")
    assert failure.transient
    assert len(sender.offsets) == 3


async def test_what_nobody_can_repair_is_not_tried_again(transfer: Transfer) -> None:
    file = a_file("m/1/model", CONTENT)
    sender = Sender(broken(PLACE, file.path, "permission denied", transient=False))
    assert not (await fails(transfer, file, sender)).transient
    assert sender.offsets == [0]


@pytest.mark.parametrize("size", [9, 11])
async def test_a_store_that_lies_about_sizes(transfer: Transfer, size: int) -> None:
    file = a_file("m/1/model", CONTENT)
    failure = await fails(transfer, file, Sender(*(incoming(file, CONTENT, size=size) for _ in range(3))))
    assert failure.message.endswith(f"the store lists 10 bytes, but would send {size}")


async def test_a_store_that_sends_more_than_it_says(transfer: Transfer) -> None:
    file = a_file("m/1/model", CONTENT)
    failure = await fails(transfer, file, Sender(*(incoming(file, CONTENT, b"more") for _ in range(3))))
    assert failure.message.endswith("the store lists 10 bytes, but sends more")


async def test_a_file_that_changes_while_it_is_read(transfer: Transfer) -> None:
    file = a_file("m/1/model", CONTENT, "1")
    other = a_file("m/1/model", CONTENT, "2")
    sender = Sender(incoming(file, b"0123"), incoming(other, b"456789"), incoming(file, CONTENT))
    assert await bring(transfer, file, sender) == (CONTENT, 10)
    assert sender.offsets == [0, 4, 0]


async def test_the_digest_of_the_metadata(transfer: Transfer) -> None:
    file = a_file("m/1/model", CONTENT)
    right, wrong = hashlib.sha256(CONTENT).hexdigest(), "0" * 64
    sender = Sender(incoming(file, b"012345678X", sha256=right), incoming(file, CONTENT, sha256=right))
    assert await bring(transfer, file, sender) == (CONTENT, 10)
    file = a_file("m/2/model", CONTENT)
    failure = await fails(transfer, file, Sender(*(incoming(file, CONTENT, sha256=wrong) for _ in range(3))))
    assert failure.message.endswith(f"its SHA-256 is {right}, but its metadata says {wrong}")


async def test_an_etag_that_is_the_md5(transfer: Transfer) -> None:
    file = a_file("m/1/model", CONTENT, hashlib.md5(CONTENT).hexdigest())
    sender = Sender(incoming(file, b"012345678X"), incoming(file, CONTENT))
    assert await bring(transfer, file, sender) == (CONTENT, 10)
    file = a_file("m/2/model", CONTENT, file.mark)
    failure = await fails(transfer, file, Sender(incoming(file, b"012345678X"), *[incoming(file, b"X123456789")] * 3))
    assert "it arrives damaged" in failure.message


async def test_an_etag_that_only_looks_like_an_md5(transfer: Transfer) -> None:
    file = a_file("m/1/model", CONTENT, "0" * 32)
    sender = Sender(incoming(file, CONTENT), incoming(file, CONTENT))
    assert await bring(transfer, file, sender) == (CONTENT, 10)
    other = a_file("m/2/model", CONTENT, "0" * 32)
    sender = Sender(incoming(other, CONTENT))  # by now it is known
    assert await bring(transfer, other, sender) == (CONTENT, 10)


async def test_a_cancelled_download_leaves_nobody_waiting(transfer: Transfer) -> None:
    file = a_file("m/1/model", CONTENT)
    reading = asyncio.Event()

    class Never(Sender):
        async def __call__(self, offset: int) -> Download:
            reading.set()
            await asyncio.Event().wait()
            raise AssertionError

    task = asyncio.create_task(transfer.bring(PLACE, file, Never(), lambda count: None))
    await reading.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await bring(transfer, file, Sender(incoming(file, CONTENT))) == (CONTENT, 10)


async def test_a_bounded_number_at_a_time(tmp_path: Path) -> None:
    transfer = Transfer(DownloadCache(tmp_path), at_a_time=2)
    files = [a_file(f"m/1/{number}", CONTENT) for number in range(6)]
    running = most = 0

    async def open_at(file: RemoteFile) -> Download:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return incoming(file, CONTENT)

    async def one(file: RemoteFile) -> None:
        await transfer.bring(PLACE, file, lambda offset: open_at(file), lambda count: None)

    await asyncio.gather(*map(one, files))
    assert most <= 2


async def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    file = a_file("m/1/model", CONTENT)
    with pytest.raises(ModserveError, match="--repository-cache-dir") as caught:
        await bring(Transfer(DownloadCache(tmp_path / "file")), file, Sender())
    assert caught.value.code is Code.INTERNAL


def test_progress(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    with caplog.at_level(logging.INFO):
        progress = DownloadProgress("model 'm', version 1", "s3://b", 200_000_000, clock)
        progress.add(10)
        clock.now += 6
        progress.add(50_000_000)
        progress.add(1)
        clock.now += 1
        progress.end()
    assert caplog.messages == [
        "model 'm', version 1: 50.0 MB of 200.0 MB (25 %) downloaded from 's3://b', in 6 s, 8.3 MB a second",
        "model 'm', version 1: 200.0 MB downloaded from 's3://b', in 7.0 s",
    ]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (1, "1 byte"), (999, "999 bytes"), (1500, "1.5 kB"), (10**9, "1.0 GB"), (10**16, "10000.0 TB")],
)
def test_numbers_of_bytes(count: int, text: str) -> None:
    assert in_bytes(count) == text
