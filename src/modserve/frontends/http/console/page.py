"""The page itself: one answer that has its style and its script in it, made of the files beside this module."""

import base64
import functools
import hashlib
from importlib import resources
from typing import Final, NamedTuple

from fastapi import Response

_SCRIPTS: Final = (
    "elements.js",
    "charts.js",
    "stream.js",
    "models.js",
    "detail.js",
    "tensors.js",
    "images.js",
    "request.js",
    "server.js",
    "start.js",
)
"""In their order in the page, where they are one script."""
_FILES = resources.files("modserve.frontends.http.console")


class PageResponse(NamedTuple):
    body: bytes
    headers: dict[str, str]


@functools.cache
def page() -> PageResponse:
    """Made when somebody looks at it for the first time.

    Names of models and texts of failures are others': nothing runs but the page's own script, which asks this server
    only. Pictures are those that it draws itself, of a model's outputs.
    """
    style = _read("console.css")
    script = b'"use strict";\n' + b"\n".join(map(_read, _SCRIPTS))
    body = _read("console.html").replace(b"/* style */", style).replace(b"/* script */", script)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {
        "Cache-Control": "no-cache",
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",
        "Vary": "Accept",
        "X-Content-Type-Options": "nosniff",
    }
    return PageResponse(body, headers)


def response() -> Response:
    """What a browser gets."""
    body, headers = page()
    return Response(body, headers=headers, media_type="text/html")


def _read(name: str) -> bytes:
    return _FILES.joinpath(name).read_bytes()


def _hash(text: bytes) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'"
