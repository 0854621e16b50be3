"""The pip command that adds an extra to this modserve, from where it was installed.

The bare name is never in a command: until a release is published, the package index has no modserve, and anyone who
registers that name there runs code where such a command is typed.
"""

import functools
import json
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

UNKNOWN_SOURCE = "git+<this repository>"


def pip_install(extra: str = "") -> str:
    """Return the command for the extra of that name, or for modserve itself."""
    return command(extra, _direct_url())


def command(extra: str, direct_url: str) -> str:
    """Return the command for an installation with this ``direct_url.json`` (PEP 610); empty if it has none."""
    extras = f"[{extra}]" if extra else ""
    record: dict[str, Any] = json.loads(direct_url) if direct_url else {"url": ""}
    url = record["url"]
    if url.startswith("file:") and Path(path := unquote(urlsplit(url).path)).exists() and "vcs_info" not in record:
        editable = "-e " if record.get("dir_info", {}).get("editable") else ""
        return f"pip install {editable}{shlex.quote(path + extras)}"
    if "vcs_info" in record:
        revision = record["vcs_info"].get("requested_revision", "")
        url = f"{record['vcs_info']['vcs']}+{url}" + (f"@{revision}" if revision else "")
    elif url.startswith("file:"):
        url = ""
    return f"pip install {shlex.quote(f'modserve{extras} @ {url or UNKNOWN_SOURCE}')}"


@functools.cache
def _direct_url() -> str:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return distribution("modserve").read_text("direct_url.json") or ""
    except PackageNotFoundError:
        return ""
