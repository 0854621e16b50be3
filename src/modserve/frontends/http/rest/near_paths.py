"""The path that a client is likely to have meant, for one that no route has."""

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence

from starlette.routing import BaseRoute

from .deferred import DeferredRoutes

_LONGEST, _MOST_SEGMENTS, _LIKELY = 300, 10, 0.6
_PARAMETER = re.compile(r"\(\?P<.*?\)")


def near_path(path: str, routes: Sequence[BaseRoute]) -> str:
    """A path of the routes that differs from `path` in one word, in its case, or in slashes; empty if there is none."""
    if len(path) > _LONGEST or path.count("/") > _MOST_SEGMENTS:
        return ""
    patterns = [route.paths for route in routes if isinstance(route, DeferredRoutes)]
    words = _words(patterns)
    variants = ((each, place) for each, place in _variants(path, words) if each != path)
    return next((each for each, place in variants if any(_has(one, each, place) for one in patterns)), "")


def _has(pattern: re.Pattern[str], path: str, place: int) -> bool:
    """Whether the routes have the path, and at this place, if it is above 0, no parameter: names are the client's."""
    match = pattern.fullmatch(path)
    return match is not None and not any(start <= place < end for start, end in match.regs[1:] if place > 0)


def _words(patterns: Iterable[re.Pattern[str]]) -> list[str]:
    """The words of paths that are no parameters."""
    segments = (_PARAMETER.sub("", each.pattern).strip("^$").split("/") for each in patterns)
    return sorted({word for words in segments for word in words if re.fullmatch(r"\w+", word)})


def _variants(path: str, words: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Other spellings, the most likely ones first, with the place of the word that is another; 0 if none is."""
    stripped = f"/{path.strip('/')}"
    for whole in dict.fromkeys((stripped, f"/v2{stripped}")):
        yield whole, 0
        segments = whole.split("/")
        for index in range(len(segments) - 1, 0, -1):
            for word in difflib.get_close_matches(segments[index].lower(), words, 3, _LIKELY):
                before = "/".join(segments[:index]) + "/"
                yield before + "/".join((word, *segments[index + 1 :])), len(before)
