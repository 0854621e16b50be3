"""Messages that come in parts, put together without a call."""

import pytest

from modserve.core.requests.memory import MemoryBudget
from modserve.frontends.grpc.heads import INTERNAL, RESOURCE_EXHAUSTED
from modserve.frontends.grpc.messages import MessageAssembler, MessageError


def framed(message: bytes, compressed: int = 0) -> bytes:
    return bytes((compressed,)) + len(message).to_bytes(4, "big") + message


@pytest.mark.parametrize("size", [1, 2, 5, 6, 100, 5_000])
@pytest.mark.parametrize("length", [0, 1, 3_000])
def test_any_pieces(size: int, length: int) -> None:
    memory, message = MemoryBudget(), bytes(range(250)) * (length // 250) or bytes(length)
    assembler = MessageAssembler(memory, 0, "")
    sent, at = framed(message) + b"the next one", 0
    while not assembler.complete:
        at = assembler.feed(sent, at, min(at + size, len(sent)))
    assert at == len(message) + 5
    assert assembler.message() == message
    assert memory.held == assembler.held == len(message)
    assembler.release()
    assert memory.held == 0


@pytest.mark.parametrize(
    ("begin", "status"),
    [
        (framed(bytes(11)), RESOURCE_EXHAUSTED),
        (framed(b"", compressed=2), INTERNAL),
        (framed(b"", compressed=1), INTERNAL),
    ],
)
def test_messages_that_may_not_come(begin: bytes, status: int) -> None:
    with pytest.raises(MessageError) as raised:
        MessageAssembler(MemoryBudget(), 10, "").feed(begin, 0, len(begin))
    assert raised.value.status == status


def test_a_compressed_message_in_a_call_that_says_how() -> None:
    assembler, sent = MessageAssembler(MemoryBudget(), 10, "gzip"), framed(b"x", compressed=1)
    assert assembler.feed(sent, 0, len(sent)) == len(sent)
    assert assembler.complete


def test_what_the_memory_has_no_room_for() -> None:
    memory, sent = MemoryBudget(limit=100), framed(bytes(200))
    assembler = MessageAssembler(memory, 0, "")
    assembler.feed(sent, 0, 90)
    with pytest.raises(MessageError) as raised:
        assembler.feed(sent, 90, 205)
    assert raised.value.status == RESOURCE_EXHAUSTED
    assembler.release()
    assert memory.held == 0
