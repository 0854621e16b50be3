"""The event loop that servers and their clients run on."""

import asyncio
from collections.abc import Callable


def new_event_loop() -> asyncio.AbstractEventLoop:
    """With uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory()
