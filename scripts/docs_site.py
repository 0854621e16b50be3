"""What MkDocs does besides its own: pages and files from outside docs/, and links as GitHub reads them.

Links between the files of this repository are written as GitHub wants them. In the site, docs/ is the root; README.md
is its first page, and what else is linked from outside docs/ has the path there that it has in the repository. Lists
may follow a paragraph without an empty line, and what belongs to a numbered item may be indented by three spaces, as on
GitHub.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = "docs"
OUTSIDE = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "examples/README.md",
    "examples/*/README.md",
    "benchmarks/results/tables.md",
)

MOVED: dict[str, str] = {
    "connections.html": "limits.html",
    "console.html": "metrics.html#console",
    "record.html": "logs.html#records",
    "security.html": "access.html",
    "tenants.html": "limits.html#tenants",
    "tracing.html": "logs.html#traces",
    "docker.html": "operations.html#docker",
    "ray.html": "servers.html#ray",
    "scale.html": "servers.html#how-many-servers",
    "upgrades.html": "operations.html#upgrades",
    "workers.html": "operations.html#workers",
    "check.html": "troubleshooting.html#repository-check",
    "faq.html": "troubleshooting.html#questions",
    "init.html": "commands.html#init",
    "python-examples.html": "python-models.html",
    "python-from-triton.html": "python-models.html#differences-from-triton",
    "python-functions.html": "python-models.html#functions",
    "design/calls.html": "design.html#one-inference-call-by-call",
    "engines/tensorrt.html": "engines/gpu.html#tensorrt",
    "loading.html": "repositories.html#model-control",
}
"""Addresses of the site that pages had before, and what they lead to now: `old.html` → `page.html#heading`."""

_FENCE = re.compile(r"^ *(```|~~~)")
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_IMAGE = re.compile(r'(src|srcset|href)="([^"#]+)"')
_ITEM = re.compile(r" {0,3}(?:[-*+]|1\.) +\S")
_NUMBERED = re.compile(r"\d\. +\S")
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/, and all files there that a page links to."""
    for path in outside():
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    pages = [file for file in files if file.src_uri.endswith(".md")]
    for page in pages:
        for target in targets(repository_path(page.src_uri)):
            place = site_path(target)
            if files.get_file_from_path(place) is None and (ROOT / target).is_file():
                files.append(File.generated(config, place, abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with links and lists as the site needs them."""
    return for_site(markdown, repository_path(page.file.src_uri))


def on_post_build(*, config: MkDocsConfig) -> None:
    """Write a page at each address of before that leads to that of now."""
    for old, new in MOVED.items():
        place = Path(config.site_dir, old)
        place.parent.mkdir(parents=True, exist_ok=True)
        target = posixpath.relpath(new, posixpath.dirname(old) or ".")
        head = f'<meta charset="utf-8"><meta http-equiv="refresh" content="0; url={target}"><title>Moved</title>'
        place.write_text(f'<!doctype html>{head}<a href="{target}">This page has moved.</a>', encoding="utf-8")


def outside() -> list[str]:
    """The pages from outside docs/, by their paths in the repository."""
    return [path.relative_to(ROOT).as_posix() for pattern in OUTSIDE for path in sorted(ROOT.glob(pattern))]


def repository_path(place: str) -> str:
    """Where in the repository a page of the site comes from."""
    return place if place in outside() else f"{DOCS}/{place}"


def site_path(path: str) -> str:
    """Where in the site a path of the repository is; a folder is its README."""
    if (ROOT / path).is_dir():
        path = f"{path}/README.md"
    return path.removeprefix(f"{DOCS}/")


def targets(path: str) -> Iterator[str]:
    """The files of the repository that a page links to, by their paths."""
    for line, is_code in lines((ROOT / path).read_text("utf-8")):
        if not is_code:
            yield from (_target(path, link[2]) for link in _LINK.finditer(line) if not _ELSEWHERE.match(link[2]))
            yield from (_target(path, link[2]) for link in _IMAGE.finditer(line) if not _ELSEWHERE.match(link[2]))


def for_site(markdown: str, path: str) -> str:
    """The text of the page at `path`, changed for the site."""
    here = posixpath.dirname(site_path(path))

    def moved(address: str) -> str:
        if _ELSEWHERE.match(address):
            return address
        return posixpath.relpath(site_path(_target(path, address)), here or ".")

    written: list[str] = []
    numbered = False
    for line, is_code in lines(markdown):
        numbered = bool(_NUMBERED.match(line)) or (numbered and (not line or line.startswith("   ")))
        if numbered and line.startswith("   "):
            line = " " + line
        if not is_code:
            line = _LINK.sub(lambda link: link[1] + moved(link[2]) + (link[3] or "") + link[4], line)
            line = _IMAGE.sub(lambda link: f'{link[1]}="{moved(link[2])}"', line)
            if _ITEM.match(line) and written and _is_text(written[-1]):
                written.append("")
        written.append(line)
    return "\n".join(written)


def lines(markdown: str) -> Iterator[tuple[str, bool]]:
    """The lines of a page, and whether each is code."""
    fence = ""
    for line in markdown.split("\n"):
        match = _FENCE.match(line)
        inside = bool(fence or match)
        if match and not fence:
            fence = match[1]
        elif match and match[1] == fence:
            fence = ""
        yield line, inside


def _target(path: str, address: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), address))


def _is_text(line: str) -> bool:
    """Whether a list that begins below the line is taken for more of a paragraph."""
    return bool(line.strip()) and not line.startswith((" ", "#", "|", "<!--")) and not _ITEM.match(line)
