"""Console page: one response with its style and its script in it, made of the files beside this module."""

import functools
from typing import Final

from fastapi import Response

from modserve.frontends.http.single_page import PageResponse, single_page

_SCRIPTS: Final = (
    "elements.js",
    "charts.js",
    "stream.js",
    "models.js",
    "detail.js",
    "tensors.js",
    "images.js",
    "request.js",
    "chat.js",
    "texts.js",
    "server.js",
    "start.js",
)
"""Scripts in their order in the page, where they are one script."""


@functools.cache
def page() -> PageResponse:
    """Return the page, made at its first request."""
    body, headers = single_page("modserve.frontends.http.console", "console", _SCRIPTS)
    return PageResponse(body, {**headers, "Vary": "Accept"})


def response() -> Response:
    """Return the page as a browser gets it."""
    body, headers = page()
    return Response(body, headers=headers, media_type="text/html")
