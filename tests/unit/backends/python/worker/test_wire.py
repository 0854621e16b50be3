"""Frames between a server and a worker: what is written is read, however it arrives."""

import random
import struct
from typing import Any

import pytest

from modserve.backends.python.worker import wire
from modserve.backends.python.worker.wire import Descriptions, FrameReader, FrameWriter, Kind, Location, Status

SORT = ((("A", "FP32", (2, 2)), ("B", "BYTES", (1,))), ("OUT", "MORE"))
FLOATS, TEXT = struct.pack("<4f", 1, 2, 3, 4), struct.pack("<I", 5) + b"seven"


def nowhere(elements: Any, size: int) -> Location | None:
    raise AssertionError("small tensors go inline")


def fetch(location: Location) -> Any:
    return location


def frame_of(*records: tuple[Any, ...], place: wire.Place = nowhere) -> bytes:
    writer = FrameWriter(place)
    for record in records:
        writer.add(*record)
    return writer.frame(Kind.EXECUTE)


def read(frame: bytes) -> list[wire.Record]:
    reader = FrameReader()
    reader.room()[: len(frame)] = frame
    ((kind, count, inline_at, body),) = reader.received(len(frame))
    assert kind == Kind.EXECUTE
    return wire.read_records(body, count, inline_at, Descriptions(), fetch)


def test_a_batch_comes_as_it_went() -> None:
    description = Descriptions().write(SORT)
    extras = wire.pack({"flags": 3, "parameters": {"größe": 1.5}})
    records = read(
        frame_of(
            (7, Status.OPEN, description, [FLOATS, TEXT], "zürich".encode(), extras),
            (8, Status.END),
            (2**64 - 1, Status.FINAL, description, [memoryview(FLOATS), bytearray(TEXT)]),
        )
    )
    first, second, third = records
    assert (first.number, first.status, first.id) == (7, Status.OPEN, "zürich")
    assert first.extras == {"flags": 3, "parameters": {"größe": 1.5}}
    assert first.description.tensors == (("A", "FP32", (2, 2), 16), ("B", "BYTES", (1,), -1))
    assert first.description.outputs == ("OUT", "MORE")
    assert [bytes(one) for one in first.elements] == [FLOATS, TEXT]
    assert second[:2] == (8, Status.END)
    assert second[3:] == ({}, "", [])
    assert third.number == 2**64 - 1
    assert [bytes(one) for one in third.elements] == [FLOATS, TEXT]
    assert third.description is first.description  # which was read once


def test_inline_elements_are_aligned() -> None:
    sort = (tuple((name, "INT8", (size,)) for name, size in (("A", 1), ("B", 17), ("C", 0), ("D", 3))), ())
    values = [b"a", b"b" * 17, b"", b"ddd"]
    (record,) = read(frame_of((1, 0, Descriptions().write(sort), values)))
    assert [bytes(one) for one in record.elements] == values
    whole = record.elements[0].obj
    assert [whole.find(value) % 16 for value in (b"a" + bytes(15), values[1], values[3])] == [0, 0, 0]


def test_large_tensors_go_elsewhere() -> None:
    size = wire.INLINE_BYTES + 1
    sort = ((("A", "UINT8", (size,)), ("B", "UINT8", (4,))), ())
    placed = []

    def place(elements: Any, length: int) -> Location:
        placed.append(bytes(elements))
        return Location(wire.SERVERS, 4096, 65536, 3, length)

    (record,) = read(frame_of((1, 0, Descriptions().write(sort), [bytes(size), b"1234"]), place=place))
    assert placed == [bytes(size)]
    assert record.elements[0] == Location(wire.SERVERS, 4096, 65536, 3, size)
    assert bytes(record.elements[1]) == b"1234"


def test_so_do_many_small_ones() -> None:
    size = wire.INLINE_BYTES
    count = wire.MAX_INLINE_BYTES // size
    sort = (tuple((str(index), "UINT8", (size,)) for index in range(count + 1)), ())
    placed = []

    def place(elements: Any, length: int) -> Location:
        placed.append(length)
        return Location(wire.WORKERS, 4096, length, 0, length)

    frame_of((1, 0, Descriptions().write(sort), [bytes(size)] * (count + 1)), place=place)
    assert placed == [size]


@pytest.mark.parametrize("step", [1, 7, 16, 100, 4096, 10**6])
def test_frames_in_pieces(step: int) -> None:
    rng = random.Random(step)
    bodies = [rng.randbytes(rng.choice((0, 3, 1000, 70_000, 300_000))) for _ in range(12)]
    stream = b"".join(
        wire.HEADER.pack(len(body), index + 1, index, index * 7) + body for index, body in enumerate(bodies)
    )
    if step == 1:
        bodies, stream = bodies[:1], stream[: 16 + len(bodies[0])]
    reader, frames, at = FrameReader(), [], 0
    while at < len(stream):
        room = reader.room()
        some = stream[at : at + min(step, len(room))]
        room[: len(some)] = some
        frames += reader.received(len(some))
        at += len(some)
    assert [(kind, records, argument, bytes(body)) for kind, records, argument, body in frames] == [
        (index + 1, index, index * 7, body) for index, body in enumerate(bodies)
    ]


def test_a_body_is_memory_of_its_own() -> None:
    reader = FrameReader()
    bodies = []
    for text in (b"first", b"other"):
        frame = wire.HEADER.pack(5, Kind.LOG, 0, 0) + text
        reader.room()[: len(frame)] = frame
        bodies += [frame[3] for frame in reader.received(len(frame))]
    assert [bytes(body) for body in bodies] == [b"first", b"other"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda frame: frame[:16] + b"\xff" * 28 + frame[44:],  # lengths beyond the end
        lambda frame: frame[:26] + b"\x05\x00" + frame[28:],  # more tensors than described
        lambda frame: frame.replace(b"[2,2]", b"[2,3]"),  # fewer bytes than the shape says
        lambda frame: frame.replace(b"FP32", b"FP99"),
        lambda frame: frame.replace(b'"A"', b'"A '),
    ],
)
def test_what_no_writer_makes(spoil: Any) -> None:
    frame = frame_of((7, 0, Descriptions().write(SORT), [FLOATS, TEXT]))
    with pytest.raises((ValueError, KeyError, struct.error)):
        read(spoil(frame))


def test_inline_elements_stay_in_the_frame() -> None:
    frame = bytearray(frame_of((7, 0, Descriptions().write(SORT), [FLOATS, TEXT])))
    at = frame.index(struct.pack("<Q", len(TEXT)))
    struct.pack_into("<Q", frame, at, 10**6)
    with pytest.raises(ValueError, match="inline"):
        read(bytes(frame))


def test_descriptions_are_forgotten_when_too_many() -> None:
    descriptions = Descriptions()
    for index in range(3000):
        written = descriptions.write(((("A", "INT8", (index,)),), ()))
        assert descriptions.read(written).tensors[0].size == index
    assert len(descriptions._read) <= 1024
    assert len(descriptions._written) <= 1024


def test_small_frames() -> None:
    frames = [
        wire.number_frame(Kind.CANCELLED, 2**63),
        wire.json_frame(Kind.RESULT, {"value": ["ä", None]}, 9),
        wire.text_frame(Kind.LOG, "grüße", 2),
        wire.offsets_frame(Kind.RELEASE, [4096, 2**40]),
    ]
    reader = FrameReader()
    stream = b"".join(frames)
    reader.room()[: len(stream)] = stream
    number, result, text, offsets = reader.received(len(stream))
    assert (number[0], wire.read_number(number[3])) == (Kind.CANCELLED, 2**63)
    assert (result[0], result[2], wire.read_json(result[3])) == (Kind.RESULT, 9, {"value": ["ä", None]})
    assert (text[0], text[2], str(text[3], "utf-8")) == (Kind.LOG, 2, "grüße")
    assert (offsets[0], wire.read_offsets(offsets[3])) == (Kind.RELEASE, [4096, 2**40])
