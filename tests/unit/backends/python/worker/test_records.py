"""Requests and responses in frames."""

import struct
from typing import Any

import numpy as np
import pytest

from modserve.backends.python.worker import records, wire
from modserve.backends.python.worker.records import Descriptions, OutgoingRecord, Status
from modserve.backends.python.worker.wire import Location, MessageKind, RecordReader

SORT = ((("A", "FP32", (2, 2)), ("B", "BYTES", (1,))), ("OUT", "MORE"), ("target", -1))
FLOATS, TEXT = struct.pack("<4f", 1, 2, 3, 4), struct.pack("<I", 5) + b"seven"


def nowhere(elements: Any, size: int) -> Location | None:
    raise AssertionError("small tensors go inline")


def fetch(location: Location) -> Any:
    return location


def frame_of(*entries: tuple[Any, ...], place: records.Place = nowhere) -> bytes:
    return records.write_records(
        Descriptions(), place, MessageKind.EXECUTE, [OutgoingRecord(*each) for each in entries]
    )


def read(frame: bytes) -> list[records.Record]:
    reader = RecordReader()
    reader.room()[: len(frame)] = frame
    ((kind, count, inline_at, body),) = reader.take_in(len(frame))
    assert kind == MessageKind.EXECUTE
    return records.read_records(body, count, inline_at, Descriptions(), fetch)


def test_a_batch_comes_as_it_went() -> None:
    extras = wire.pack({"flags": 3, "parameters": {"größe": 1.5}})
    came = read(
        frame_of(
            (7, Status.OPEN, SORT, [FLOATS, TEXT], "zürich".encode(), extras),
            (8, Status.END),
            (2**64 - 1, Status.FINAL, SORT, [memoryview(FLOATS), bytearray(TEXT)]),
        )
    )
    first, second, third = came
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
    sort = (tuple((name, "INT8", (size,)) for name, size in (("A", 1), ("B", 17), ("C", 0), ("D", 3))), (), ())
    values = [b"a", b"b" * 17, b"", b"ddd"]
    (record,) = read(frame_of((1, 0, sort, values)))
    assert [bytes(one) for one in record.elements] == values
    whole = record.elements[0].obj
    assert [whole.find(value) % 16 for value in (b"a" + bytes(15), values[1], values[3])] == [0, 0, 0]


def test_large_tensors_go_elsewhere() -> None:
    size = records.INLINE_BYTES + 1
    sort = ((("A", "UINT8", (size,)), ("B", "UINT8", (4,))), (), ())
    placed = []

    def place(elements: Any, length: int) -> Location:
        placed.append(bytes(elements))
        return Location(wire.SERVERS, 4096, 65536, 3, length)

    (record,) = read(frame_of((1, 0, sort, [bytes(size), b"1234"]), place=place))
    assert placed == [bytes(size)]
    assert record.elements[0] == Location(wire.SERVERS, 4096, 65536, 3, size)
    assert bytes(record.elements[1]) == b"1234"


def test_so_do_many_small_ones() -> None:
    size = records.INLINE_BYTES
    count = records.MAX_INLINE_BYTES // size
    sort = (tuple((str(index), "UINT8", (size,)) for index in range(count + 1)), (), ())
    placed = []

    def place(elements: Any, length: int) -> Location:
        placed.append(length)
        return Location(wire.WORKERS, 4096, length, 0, length)

    frame_of((1, 0, sort, [bytes(size)] * (count + 1)), place=place)
    assert placed == [size]


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
    frame = frame_of((7, 0, SORT, [FLOATS, TEXT]))
    with pytest.raises((ValueError, KeyError, struct.error)):
        read(spoil(frame))


def test_inline_elements_stay_in_the_frame() -> None:
    frame = bytearray(frame_of((7, 0, SORT, [FLOATS, TEXT])))
    at = frame.index(struct.pack("<Q", len(TEXT)))
    struct.pack_into("<Q", frame, at, 10**6)
    with pytest.raises(ValueError, match="inline"):
        read(bytes(frame))


def test_descriptions_are_forgotten_when_too_many() -> None:
    descriptions = Descriptions()
    for index in range(3000):
        written = descriptions.write(((("A", "INT8", (index,)),), (), ()))
        assert descriptions.read(written).tensors[0].size == index
    assert len(descriptions._read) <= 1024
    assert len(descriptions._written) <= 1024


@pytest.mark.parametrize("shapes", [((4,), (4,)), ((3,), (5, 2)), ((), (0,)), ((1,),), ()], ids=str)
def test_one_small_record_is_the_same_from_memory(shapes: tuple[tuple[int, ...], ...]) -> None:
    """Frames of one record come from what is kept of the first: nothing but the number and the elements may differ."""
    writing, reading = Descriptions(), Descriptions()
    sort = (tuple([(str(index), "FP32", shape) for index, shape in enumerate(shapes)]), ("OUT",), ())
    for number in (1, 2, 2**64 - 1):
        elements = [np.random.default_rng(number).random(shape, np.float32).tobytes() for shape in shapes]
        entry = OutgoingRecord(number, Status.FINAL, sort, elements)
        frame = records.write_records(writing, nowhere, MessageKind.EXECUTED, [entry])
        assert frame == records._write_records(Descriptions(), nowhere, MessageKind.EXECUTED, [entry])
        reader = RecordReader()
        reader.room()[: len(frame)] = frame
        ((kind, count, inline_at, body),) = reader.take_in(len(frame))
        (record,) = records.read_records(body, count, inline_at, reading, fetch)
        assert (kind, record.number, record.status) == (MessageKind.EXECUTED, number, Status.FINAL)
        assert [bytes(one) for one in record.elements] == elements
        assert [one.shape for one in record.description.tensors] == list(shapes)
        assert (record.extras, record.id, record.description.outputs) == ({}, "", ("OUT",))
    assert len(writing.templates) == len(reading.shapes) == 1


def test_what_differs_is_not_taken_from_memory() -> None:
    writing, reading = Descriptions(), Descriptions()
    sort = ((("A", "BYTES", (1,)),), (), ())
    for text in (b"one", b"other", b""):
        entry = OutgoingRecord(
            1, Status.FINAL, sort, [struct.pack("<I", len(text)) + text], b"id" + text, wire.pack({"a": 1})
        )
        frame = records.write_records(writing, nowhere, MessageKind.EXECUTED, [entry])
        body = memoryview(frame)[16:]
        _, _, count, inline_at = wire.HEADER.unpack_from(frame)
        (record,) = records.read_records(body, count, inline_at, reading, fetch)
        assert bytes(record.elements[0])[4:] == text
        assert (record.id, record.extras) == ("id" + text.decode(), {"a": 1})
    assert not reading.shapes


def test_a_frame_cut_short_is_not_taken_from_memory() -> None:
    descriptions = Descriptions()
    frame = frame_of((7, Status.FINAL, ((("A", "FP32", (4,)),), (), ()), [FLOATS]))
    _, _, count, inline_at = wire.HEADER.unpack_from(frame)
    body = memoryview(frame)[16:]
    records.read_records(body, count, inline_at, descriptions, fetch)
    assert descriptions.shapes
    with pytest.raises(ValueError, match="inline"):
        records.read_records(body[:-4], count, inline_at, descriptions, fetch)
