"""What a release is made of: the commit that is checked out, its version, and that version's section of CHANGELOG.md.

A section begins with ``## VERSION (unreleased)`` while it is written. The commit that is released has the day instead:
``## VERSION (YYYY-MM-DD)``.
"""

import re
import subprocess
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
VERSION_FILE = "src/modserve/__about__.py"
_HEADING = re.compile(r"## (\S+) \((unreleased|\d{4}-\d{2}-\d{2})\)")
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)([^)#\s]*)(?:#[^)\s]*)?\)")
_SHOWN_CHANGES = 5


@dataclass(frozen=True, slots=True)
class Section:
    """One version's part of CHANGELOG.md. `day` is None while the version is unreleased."""

    version: str
    day: date | None
    body: str


@dataclass(frozen=True, slots=True)
class Source:
    """A commit, and what differs from it in the working tree (`changes`, lines of ``git status --porcelain``).

    `tagged` is the commit of the tag ``vVERSION``, or empty. `seconds` is the time of the commit, since 1970.
    """

    commit: str
    seconds: int
    version: str
    changelog: str
    changes: tuple[str, ...] = ()
    tagged: str = ""


def sections(changelog: str) -> list[Section]:
    """The sections of CHANGELOG.md, the newest first. Raises ValueError for a heading of another form."""
    headings: list[tuple[str, date | None]] = []
    bodies: list[list[str]] = []
    for number, line in enumerate(changelog.splitlines(), 1):
        if line.startswith("## "):
            match = _HEADING.fullmatch(line)
            if match is None:
                raise ValueError(
                    f"CHANGELOG.md:{number}: '{line}' should be '## VERSION (unreleased)' or '## VERSION (YYYY-MM-DD)'"
                )
            try:
                day = None if match[2] == "unreleased" else date.fromisoformat(match[2])
            except ValueError as error:
                raise ValueError(f"CHANGELOG.md:{number}: {match[2]} is no day: {error}") from None
            headings.append((match[1], day))
            bodies.append([])
        elif bodies:
            bodies[-1].append(line)
    return [
        Section(version, day, "\n".join(lines).strip()) for (version, day), lines in zip(headings, bodies, strict=True)
    ]


def section(changelog: str, version: str) -> Section:
    """That of a version. Raises LookupError if there is none, and ValueError as `sections` does."""
    every = sections(changelog)
    for each in every:
        if each.version == version:
            return each
    others = ", ".join(each.version for each in every) or "none"
    raise LookupError(f"CHANGELOG.md has no section '## {version} (YYYY-MM-DD)'; it has: {others}")


def refusals(source: Source, version: str, today: date) -> list[str]:
    """Why this source cannot be released as `version`; without a version, why it cannot even be rehearsed."""
    reasons = []
    if source.changes:
        more = len(source.changes) - _SHOWN_CHANGES
        changes = ", ".join(line.strip() for line in source.changes[:_SHOWN_CHANGES])
        also = f" and {more} more" if more > 0 else ""
        reasons.append(f"the working tree differs from its commit ({changes}{also}): commit or remove that")
    if version and version != source.version:
        reasons.append(f"{VERSION_FILE} says {source.version}, not {version}")
    own = version or source.version
    if source.tagged not in ("", source.commit):
        reasons.append(f"the tag v{own} is at commit {source.tagged[:12]}, and this is {source.commit[:12]}")
    try:
        newest = sections(source.changelog)[:1]
        entry = section(source.changelog, own)
    except (LookupError, ValueError) as error:
        return [*reasons, str(error)]
    if newest != [entry]:
        reasons.append(f"CHANGELOG.md has the section of {newest[0].version} above that of {own}")
    if not entry.body:
        reasons.append(f"the section of {own} in CHANGELOG.md is empty")
    if version and entry.day is None:
        reasons.append(f"CHANGELOG.md says that {own} is unreleased: make that '## {own} ({today})', and commit it")
    return reasons


def notes(entry: Section) -> str:
    """The release notes: the section, in which links into the repository are paths, since notes are read elsewhere."""
    day = "not released yet" if entry.day is None else str(entry.day)
    return f"# modserve {entry.version}\n\n{day}\n\n{_LINK.sub(_path, entry.body)}\n"


def _path(link: re.Match[str]) -> str:
    text, path = link[1], link[2]
    return text if not path else f"{text} ({path})" if path not in text else text


def read(root: Path = ROOT) -> Source:
    """The source in `root`, a git checkout."""
    match = re.search(r'^__version__ = "([^"]+)"$', (root / VERSION_FILE).read_text("utf-8"), re.MULTILINE)
    if match is None:
        raise ValueError(f'{VERSION_FILE} has no line __version__ = "…"')
    commit, seconds = _git(root, "log", "-1", "--format=%H %ct").split()
    tag = f"refs/tags/v{match[1]}"
    tagged = _git(root, "rev-parse", f"{tag}^{{commit}}") if _git(root, "for-each-ref", tag) else ""
    return Source(
        commit=commit,
        seconds=int(seconds),
        version=match[1],
        changelog=(root / "CHANGELOG.md").read_text("utf-8"),
        changes=tuple(_git(root, "status", "--porcelain").splitlines()),
        tagged=tagged,
    )


def export(root: Path, commit: str, folder: Path) -> None:
    """The files of a commit, and nothing else that lies in the checkout, in a new `folder`."""
    folder.mkdir(parents=True)
    with TemporaryDirectory(prefix="modserve-archive-") as work:
        archive = Path(work) / "commit.tar"
        _git(root, "archive", "--format=tar", f"--output={archive}", commit)
        unpack(archive, folder)


def unpack(archive: Path, folder: Path) -> None:
    """The files of a tar archive, compressed or not, in an existing folder."""
    subprocess.run(["tar", "-x", "--no-same-owner", "-f", archive, "-C", folder], check=True)


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.rstrip("\n")
