"""Frames between a server and a worker: what is written is read, however it arrives."""

import random

import pytest

from modserve.backends.python.worker import wire
from modserve.backends.python.worker.wire import MessageKind, RecordReader


@pytest.mark.parametrize("step", [1, 7, 16, 100, 4096, 10**6])
def test_frames_in_pieces(step: int) -> None:
    rng = random.Random(step)
    bodies = [rng.randbytes(rng.choice((0, 3, 1000, 70_000, 300_000))) for _ in range(12)]
    stream = b"".join(
        wire.HEADER.pack(len(body), index + 1, index, index * 7) + body for index, body in enumerate(bodies)
    )
    if step == 1:
        bodies, stream = bodies[:1], stream[: 16 + len(bodies[0])]
    reader, frames, at = RecordReader(), [], 0
    while at < len(stream):
        room = reader.room()
        some = stream[at : at + min(step, len(room))]
        room[: len(some)] = some
        frames += reader.take_in(len(some))
        at += len(some)
    assert [(kind, records, argument, bytes(body)) for kind, records, argument, body in frames] == [
        (index + 1, index, index * 7, body) for index, body in enumerate(bodies)
    ]


def test_a_body_is_memory_of_its_own() -> None:
    reader = RecordReader()
    bodies = []
    for text in (b"first", b"other"):
        frame = wire.HEADER.pack(5, MessageKind.LOG, 0, 0) + text
        reader.room()[: len(frame)] = frame
        bodies += [frame[3] for frame in reader.take_in(len(frame))]
    assert [bytes(body) for body in bodies] == [b"first", b"other"]


def test_small_frames() -> None:
    frames = [
        wire.number_frame(MessageKind.CANCELLED, 2**63),
        wire.json_frame(MessageKind.RESULT, {"value": ["ä", None]}, 9),
        wire.text_frame(MessageKind.LOG, "grüße", 2),
        wire.offsets_frame(MessageKind.RELEASE, [4096, 2**40]),
    ]
    reader = RecordReader()
    stream = b"".join(frames)
    reader.room()[: len(stream)] = stream
    number, result, text, offsets = reader.take_in(len(stream))
    assert (number[0], wire.read_number(number[3])) == (MessageKind.CANCELLED, 2**63)
    assert (result[0], result[2], wire.read_json(result[3])) == (MessageKind.RESULT, 9, {"value": ["ä", None]})
    assert (text[0], text[2], str(text[3], "utf-8")) == (MessageKind.LOG, 2, "grüße")
    assert (offsets[0], wire.read_offsets(offsets[3])) == (MessageKind.RELEASE, [4096, 2**40])
