"""A self-contained page for browsers: one response with its style and script."""

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import Final, NamedTuple

_PARTS: Final = "page_parts.js"
"""Script with which every page's script begins."""


class PageResponse(NamedTuple):
    body: bytes
    headers: dict[str, str]


def single_page(package: str, name: str, scripts: Sequence[str]) -> PageResponse:
    """Return the page from files in `package`: ``<name>.html``, ``<name>.css``, and `scripts` in order.

    Model names and failure texts are untrusted: only the page's own script may run, and contact only this server.
    Images are limited to the script's own drawings of a model's outputs.
    """
    files = resources.files(package)

    def read(file: str) -> bytes:
        return files.joinpath(file).read_bytes()

    style = read(f"{name}.css")
    parts = resources.files(__package__).joinpath(_PARTS).read_bytes()
    lines = b"\n".join([parts, *map(read, scripts)]).split(b"\n")
    script = b"\n".join([b'"use strict";', *(line for line in lines if not line.lstrip().startswith(b"//"))])
    body = read(f"{name}.html").replace(b"/* style */", style).replace(b"/* script */", script)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {
        "Cache-Control": "no-cache",
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    return PageResponse(body, headers)


def _hash(text: bytes) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'"
