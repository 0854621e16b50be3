"""Heads of requests that have been understood before: clients send much the same one again and again.

They are those of inferences, and of other calls that go around the application.

Two heads mean the same if they agree in the lines that matter, in whatever order these come: the request line and the
headers in `_ORDINARY`, which are all that `read_head` and the parser look at. Those lines, byte for byte, are the
*essence* of a head. Two kinds of lines are no part of it: the Content-Length, which is read apart, and whole lines of
valid characters whose names matter to nobody here (``user-agent``, ``x-forwarded-for``, ...). Whatever is not such a
line stays in the essence, so a head with anything odd in it resembles none that has been understood.

Only the reader adds heads, after the parser has understood them and they were accepted. A head is not remembered if it
has a header in `_UNUSUAL`, or a header that matters twice.

Of the 15 µs that a request takes, this saves 4.5 for a head byte for byte and 2.9 for one by its essence
(`benchmarks/codec_shortcuts.py`).
"""

import re
from collections.abc import Collection, Hashable
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from mypy_extensions import mypyc_attr

from modserve.access import credentials
from modserve.core.requests import trace_context
from modserve.core.requests.memory import MemoryBudget
from modserve.frontends import browsers
from modserve.protocol.http import deadlines, infer_request
from modserve.protocol.http.request_head import RequestHead
from modserve.settings import HttpSettings

from .reports import FORMAT_HEADER, ON_REQUEST

if TYPE_CHECKING:
    from .platform_paths import PlatformPaths

Known: TypeAlias = tuple[RequestHead, int]
"""A head, and the Content-Length that comes with it."""
KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")

_SIZE = 1024
"""Heads of either kind that are remembered. If there are more, the oldest eighth is forgotten."""

_LONGEST = 4096
"""Bytes of the longest head that is remembered, or looked up by its essence."""

_POST = b"POST /"
_INFERENCE = b"POST /v2/models/"
_ORDINARY = frozenset(
    {b"accept", b"accept-encoding", b"connection", b"content-encoding", b"host", infer_request.HEADER_LENGTH.encode()}
    | deadlines.RAW_HEADERS
    | browsers.MARKS
)
_UNUSUAL = frozenset(
    {b"content-length", b"expect", b"proxy-connection", b"transfer-encoding", b"upgrade", b"x-request-id"}
)
"""Together with the headers above, and those of traces, all that the parser and `read_head` look at. A Content-Length
is usual, but only the one that is read apart. A head with an id of its own never comes again."""

_LENGTH = re.compile(rb"\r\n(?i:content-length):[ \t]*([0-9]{1,18})(?=\r\n)")


@mypyc_attr(allow_interpreted_subclasses=True)
class HeadMemory:
    """`exact` holds heads byte for byte, for a connection to look up at once; `recall` knows others by their essence.

    Nothing in it differs from what the parser would make of the same bytes. Heads have the headers of traces if they
    are `traced`, and what shows the caller if they are `keyed`. Without `inferences`, none is one of an inference;
    `routes` are the paths of the other calls. `platform` has other names for calls. `origins` are
    headers about the client that heads keep, so that heads are alike only if these are.
    """

    def __init__(
        self,
        options: HttpSettings,
        memory: MemoryBudget,
        traced: bool = False,
        inferences: bool = True,
        routes: Collection[bytes] = (),
        keyed: bool = False,
        platform: "PlatformPaths | None" = None,
        origins: frozenset[bytes] = frozenset(),
    ) -> None:
        self.exact: dict[bytes, Known] = {}
        self._essences: dict[tuple[bytes, ...], RequestHead] = {}
        self._memory = memory
        self._max_json = options.max_json
        self._alike = options.header_pattern is None
        """Whether heads of one essence are the same: no line of a client's becomes a parameter."""
        self.traced = traced
        self.inferences = inferences
        self.routes = routes
        self.keyed = keyed
        self.origins = origins | trace_context.NAMES if traced else origins
        """The headers that say where a request comes from, as `core.requests.origin` has it."""
        self._calls: tuple[bytes, ...] = (_INFERENCE, *(b"POST " + path for path in routes))
        """What a head begins with that may be remembered."""
        self.platform = platform
        restriction = options.restrictions.get("inference")
        self._ordinary = _ORDINARY if restriction is None else _ORDINARY | {restriction.name.lower().encode()}
        self._ordinary |= origins
        if keyed:
            self._ordinary |= credentials.HEADERS
        if options.orca == ON_REQUEST:
            self._ordinary |= {FORMAT_HEADER}
        if platform is not None:
            self._calls += platform.prefixes
            self._ordinary |= platform.headers
        names = _any_of(self._ordinary | _UNUSUAL | (trace_context.NAMES if traced else frozenset()))
        self._irrelevant = re.compile(
            rb"\r\n(?!(?i:%b):)[!#$%%&'*+.^_`|~0-9A-Za-z-]++:[\t\x20-\x7e\x80-\xff]*+(?=\r\n)" % names
        )

    def recall(self, raw: bytes) -> Known | None:
        """What the head means, if one with its essence has been understood. A part of a head never has one."""
        known = self.exact.get(raw)
        if known is not None or not self._alike or len(raw) > _LONGEST or not raw.startswith(self._calls):
            return known
        essence, length = self._essence(raw)
        head = self._essences.get(essence)
        if head is None:
            return None
        if length > self._max_json or 0 < self._memory.limit < length:
            return None  # perhaps too long: the reader checks it
        known = head, length
        _keep(self.exact, raw, known)
        return known

    def remember(self, raw: bytes, head: RequestHead, length: int) -> None:
        """The parser has understood `raw` as `head` of an inference with so many bytes of body."""
        if len(raw) > _LONGEST or not raw.startswith(self._calls):
            return
        essence, stated = self._essence(raw)
        lines = [line for line in essence if line and not line.startswith(_POST)]
        names = {line.partition(b":")[0].lower() for line in lines}
        if stated == length and len(names) == len(lines) and names <= self._ordinary:
            _keep(self.exact, raw, (head, length))
            _keep(self._essences, essence, head)

    def _essence(self, raw: bytes) -> tuple[tuple[bytes, ...], int]:
        """The lines that matter, in alphabetical order, and the Content-Length; none and -1 for a head without it."""
        parts = _LENGTH.split(self._irrelevant.sub(b"", raw), 1)
        if len(parts) == 1:
            return (), -1
        before, length, after = parts
        lines = (before + after).split(b"\r\n")
        lines.sort()
        return tuple(lines), int(length)


def _any_of(names: frozenset[bytes]) -> bytes:
    """A pattern for these names. Those that begin alike are only tried where one may be: most lines are none."""
    groups: dict[bytes, list[bytes]] = {}
    for name in sorted(names):
        groups.setdefault(name[:1], []).append(re.escape(name[1:]))
    return b"|".join([b"%b(?:%b)" % (re.escape(first), b"|".join(rests)) for first, rests in groups.items()])


def _keep(memory: dict[KeyT, ValueT], key: KeyT, value: ValueT) -> None:
    if len(memory) >= _SIZE:
        for old in list(islice(memory, _SIZE // 8)):
            del memory[old]
    memory[key] = value
