"""What the JSON of an inference request says, and the memory of what came before, which is not read again."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from modserve.core.requests.request import ParameterValue, RequestForm
from modserve.core.tensors.dtypes import Datatype
from modserve.core.tensors.shared_memory import Place
from modserve.core.tensors.tensor import Shape, Tensor
from modserve.protocol.http import number_slots
from modserve.protocol.http.number_slots import KEY, Slots
from modserve.protocol.json.large_json import LARGE
from modserve.protocol.reply import Reply


class Input(NamedTuple):  # which is made sooner than a dataclass
    """An input as the JSON describes it: a tensor if its data is JSON too, else `size` bytes of binary data."""

    name: str
    datatype: Datatype
    shape: Shape
    size: int
    tensor: Tensor | None


class Header(NamedTuple):
    """All that the JSON part of a request says."""

    id: str
    parameters: Mapping[str, ParameterValue]
    inputs: tuple[Input, ...]
    places: tuple[tuple[Input, Place], ...]
    """The inputs that are in shared memory."""
    outputs: tuple[str, ...]
    reply: Reply
    shared: bool
    """Whether any tensor is in shared memory."""
    form: RequestForm | None = None
    """Of JSON that is remembered."""


_REMEMBERED: Final = 1024
_MEMORABLE: Final = 4096
"""Bytes of the longest text that is kept of a request."""


class _Alike(NamedTuple):
    """Requests in JSON alone that differ in their numbers only. Without `slots` they are not known well enough."""

    slots: Slots | None
    header: Header | None


_ONCE: Final = _Alike(None, None)
"""Requests that begin like this have come once: most never come again, and it takes a while to make slots of one."""
_NEVER: Final = _Alike(None, None)


class JsonHeads:
    """The JSON of requests that repeats from call to call and is not read again.

    That is all of it where the tensors are binary, and all but the numbers where they are not. What it holds is
    bounded. Usable on any thread: two that read the same JSON at a time come to the same.
    """

    __slots__ = ("_alike", "known")

    def __init__(self) -> None:
        self.known: dict[bytes, Header] = {}
        self._alike: dict[bytes, _Alike] = {}
        """By what stands before the first tensor's data."""

    def remember(self, text: bytes, header: Header) -> None:
        # With an id it will not come again; with tensors in it, it could be large.
        if header.id or len(text) > _MEMORABLE or any(each.tensor is not None for each in header.inputs):
            return
        if len(self.known) >= _REMEMBERED:
            self.known.clear()
        self.known[text] = header if header.shared else header._replace(form=RequestForm())

    def look_up(self, text: bytes, max_json_tensor: int) -> tuple[Header, dict[str, Tensor]] | None:
        """What a request in JSON alone says, if all but its numbers is remembered. Raises INVALID_ARG."""
        if len(text) >= LARGE:
            return None
        slots, header = self._alike.get(text[: text.find(KEY)], _ONCE)
        if slots is None or header is None or slots.largest > max_json_tensor:
            return None
        inputs = number_slots.read(text, slots)
        return None if inputs is None else (header, inputs)

    def remember_numbers(self, text: bytes, header: Header) -> None:
        """For requests in JSON alone that differ from this one in their numbers."""
        if header.id or header.shared or len(text) >= LARGE:
            return
        start = text.find(KEY)
        if not 0 < start <= _MEMORABLE:
            return
        beginning = text[:start]
        before = self._alike.get(beginning)
        if before is None:
            if len(self._alike) >= _REMEMBERED:
                self._alike.clear()
            self._alike[beginning] = _ONCE
        elif before is _ONCE:  # else the first kind of this beginning stays
            slots = number_slots.slots_of(text, header.inputs)
            short = slots is not None and slots.length <= _MEMORABLE
            kept = header._replace(inputs=(), form=RequestForm())
            self._alike[beginning] = _Alike(slots, kept) if short else _NEVER
