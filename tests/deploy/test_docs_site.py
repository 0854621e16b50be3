"""The documentation as a site: it builds without a broken link, and its pages load nothing from elsewhere."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import docs_site
import pytest

ROOT = Path(__file__).parents[2]


class Addresses(HTMLParser):
    """What a page loads, what it links to, and its text without that of code."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []
        self.text = ""
        self._code = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self._code += tag in ("code", "pre", "script", "style")
        self.loaded += [values[name] for name in ("src", "data", "poster") if name in values]
        self.loaded += [part.split()[0] for part in values.get("srcset", "").split(",") if part.strip()]
        if tag in ("link", "use", "image"):
            self.loaded += [values[name] for name in ("href", "xlink:href") if name in values]
        elif tag == "a" and "href" in values:
            self.linked.append(values["href"])

    def handle_endtag(self, tag: str) -> None:
        self._code -= tag in ("code", "pre", "script", "style")

    def handle_data(self, data: str) -> None:
        if not self._code:
            self.text += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(place)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return place


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Addresses]:
    return {page: Addresses(page.read_text("utf-8")) for page in sorted(site.rglob("*.html"))}


def test_every_page_is_there(pages: dict[Path, Addresses], site: Path) -> None:
    sources = [*(path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")), *docs_site.outside()]
    assert len(pages) == len(sources) + 1 + len(docs_site.MOVED)  # and that for addresses that are none
    assert "An inference server" in pages[site / "index.html"].text


def test_nothing_is_loaded_from_elsewhere(pages: dict[Path, Addresses], site: Path) -> None:
    assert all(page.loaded for path, page in pages.items() if path.relative_to(site).as_posix() not in docs_site.MOVED)
    assert [each for page in pages.values() for each in page.loaded if urlsplit(each).netloc] == []
    for style in site.rglob("*.css"):
        addresses = re.findall(r"(?:url\(|@import\s+)[\"']?([^\"')]+)", style.read_text("utf-8"))
        assert [each for each in addresses if urlsplit(each).netloc] == []


def test_every_address_leads_somewhere(pages: dict[Path, Addresses], site: Path) -> None:
    """Links in raw HTML, pictures and scripts too, of which MkDocs says nothing."""
    broken = []
    for path, page in pages.items():
        for address in [*page.loaded, *page.linked]:
            parts = urlsplit(address)
            start = site if parts.path.startswith("/") else path.parent
            target = start / unquote(parts.path).lstrip("/")
            if not (parts.scheme or parts.netloc or target.exists()):
                broken.append(f"{path.name}: {address}")
    assert broken == []


def test_old_addresses_lead_to_a_heading(site: Path) -> None:
    for target in docs_site.MOVED.values():
        page, _, heading = target.partition("#")
        assert not heading or f'id="{heading}"' in (site / page).read_text("utf-8"), target


def test_tables_and_lists_are_read_as_on_github(pages: dict[Path, Addresses]) -> None:
    marks = re.compile(r"^(\|.*\|$|\||- \S|#+ |```|\[[^\]]+\]\()", re.MULTILINE)
    assert {path.name: match[0] for path, page in pages.items() if (match := marks.search(page.text))} == {}


def test_the_search_knows_the_pages(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    texts = {entry["location"]: entry["text"] for entry in index["docs"]}
    assert "--http-port" in texts["options.html"]


def test_links_to_what_is_outside_of_the_pages() -> None:
    assert docs_site.for_site("[a](docs/memory.md#b) ![c](docs/x.svg)", "README.md") == "[a](memory.md#b) ![c](x.svg)"
    assert docs_site.for_site("[a](../../examples/README.md)", "docs/engines/auto.md") == "[a](../examples/README.md)"
    assert docs_site.for_site("[a](../examples)", "docs/memory.md") == "[a](examples/README.md)"
    assert docs_site.for_site("[a](../../docs/memory.md)", "examples/bls_pipeline/README.md") == "[a](../../memory.md)"
    unchanged = "[a](https://host/x) [b](#here)\n```\n[c](docs/x.md)\n```"
    assert docs_site.for_site(unchanged, "README.md") == unchanged


def test_code_in_a_numbered_item() -> None:
    text = "1. a:\n\n   ```\n   b\n   ```\n\n2. c\nd\n   e"
    assert docs_site.for_site(text, "README.md") == text.replace("\n   ", "\n    ").replace("    e", "   e")


def test_a_list_below_a_paragraph() -> None:
    assert docs_site.for_site("these:\n- a\n  b\n- c\nd", "README.md") == "these:\n\n- a\n  b\n- c\nd"
