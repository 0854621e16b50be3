"""Work that takes so long that the other connections should not wait for it."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from modserve.core.response import InferenceResponse
from modserve.protocol.classification import MANY_ELEMENTS

P = ParamSpec("P")
T = TypeVar("T")


def has_many_elements(response: InferenceResponse) -> bool:
    """Whether it takes long to do something for each element."""
    return response.elements(response.outputs) > MANY_ELEMENTS


async def on_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` returns or raises. A caller that is cancelled goes on when it has ended.

    So nobody lets go of what the thread still uses.
    """
    working = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    cancelled: asyncio.CancelledError | None = None
    while not working.done():
        try:
            await asyncio.wait([working])
        except asyncio.CancelledError as error:
            cancelled = error
    try:
        if cancelled is not None:
            working.exception()  # looked at, so that nobody warns of it
            raise cancelled
        return working.result()
    finally:  # the traceback of what is raised has this frame, which must not have the exception
        del working, cancelled
