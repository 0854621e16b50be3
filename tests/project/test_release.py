"""`scripts/release`: what it refuses, its notes, its provenance, and that workflows call nothing but our scripts."""

import hashlib
import os
import re
import subprocess
import time
import zipfile
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import release_check
import release_image
import release_packages
import release_provenance
import release_source
import release_steps
import yaml
from release_source import Source

ROOT = Path(__file__).parents[2]
TODAY = date(2026, 12, 1)
CHANGELOG = """\
# Changelog

What users notice.

## 0.2.0 (2026-12-01)

### Added

- A [tutorial](docs/tutorials/triton-user.md#start), and `scripts/release` ([docs/releasing.md](docs/releasing.md)).
- [The protocol](https://example.com/v2), and [a place on this page](#fixed).

## 0.1.0 (2026-10-01)

First version.
"""
READY = Source("c" * 40, 1_795_000_000, "0.2.0", CHANGELOG)


# --- the section of a version -----------------------------------------------------------------------------------------


def test_sections_have_version_day_and_text() -> None:
    newest, first = release_source.sections(CHANGELOG)
    assert (newest.version, newest.day) == ("0.2.0", date(2026, 12, 1))
    assert newest.body.startswith("### Added")
    assert (first.version, first.day, first.body) == ("0.1.0", date(2026, 10, 1), "First version.")
    [open_section] = release_source.sections("## 0.3.0 (unreleased)\n\n- More.\n")
    assert open_section.day is None


@pytest.mark.parametrize("heading", ["## 0.2.0", "## Unreleased", "## 0.2.0 (soon)", "## 0.2.0 (2026-12-01) "])
def test_a_heading_of_another_form_is_named_with_its_line(heading: str) -> None:
    with pytest.raises(ValueError, match=r"CHANGELOG\.md:3: .* should be '## VERSION \(unreleased\)' or"):
        release_source.sections(f"# Changelog\n\n{heading}\n")


def test_a_day_that_does_not_exist_is_named_with_its_line() -> None:
    with pytest.raises(ValueError, match=r"CHANGELOG\.md:1: 2026-02-30 is no day"):
        release_source.sections("## 0.2.0 (2026-02-30)\n")


def test_the_changelog_of_this_tree_can_be_released() -> None:
    source = release_source.read(ROOT)
    assert release_source.refusals(replace(source, changes=(), tagged=""), "", TODAY) == []


def test_notes_have_the_section_and_paths_for_links() -> None:
    assert release_source.notes(release_source.section(CHANGELOG, "0.2.0")) == (
        "# modserve 0.2.0\n\n2026-12-01\n\n### Added\n\n"
        "- A tutorial (docs/tutorials/triton-user.md), and `scripts/release` (docs/releasing.md).\n"
        "- [The protocol](https://example.com/v2), and a place on this page.\n"
    )


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_source_that_is_ready() -> None:
    assert release_source.refusals(READY, "0.2.0", TODAY) == []
    assert release_source.refusals(replace(READY, tagged=READY.commit), "0.2.0", TODAY) == []


@pytest.mark.parametrize(
    ("source", "version", "reason"),
    [
        (
            replace(READY, changes=(" M README.md", "?? notes.txt")),
            "0.2.0",
            "the working tree differs from its commit (M README.md, ?? notes.txt): commit or remove that",
        ),
        (
            replace(READY, changes=tuple(f"?? {number}" for number in range(7))),
            "",
            "the working tree differs from its commit (?? 0, ?? 1, ?? 2, ?? 3, ?? 4 and 2 more): commit or remove that",
        ),
        (
            replace(READY, tagged="d" * 40),
            "0.2.0",
            "the tag v0.2.0 is at commit dddddddddddd, and this is cccccccccccc",
        ),
        (
            replace(READY, version="0.3.0"),
            "",
            "CHANGELOG.md has no section '## 0.3.0 (YYYY-MM-DD)'; it has: 0.2.0, 0.1.0",
        ),
        (
            replace(READY, version="0.1.0"),
            "0.1.0",
            "CHANGELOG.md has the section of 0.2.0 above that of 0.1.0",
        ),
        (
            replace(READY, changelog="## 0.2.0 (2026-12-01)\n\n## 0.1.0 (2026-10-01)\n\n- Old.\n"),
            "0.2.0",
            "the section of 0.2.0 in CHANGELOG.md is empty",
        ),
        (
            replace(READY, changelog="## 0.2.0 (unreleased)\n\n- New.\n"),
            "0.2.0",
            "CHANGELOG.md says that 0.2.0 is unreleased: make that '## 0.2.0 (2026-12-01)', and commit it",
        ),
    ],
)
def test_a_source_that_is_not_ready(source: Source, version: str, reason: str) -> None:
    assert release_source.refusals(source, version, TODAY) == [reason]


def test_all_reasons_are_given_at_once() -> None:
    source = replace(READY, changes=("?? a",), changelog="## 0.1.0 (2026-10-01)\n\n- Old.\n")
    reasons = release_source.refusals(source, "0.4.0", TODAY)
    assert [reason.partition(" ")[0] for reason in reasons] == ["the", "src/modserve/__about__.py", "CHANGELOG.md"]
    assert reasons[1] == "src/modserve/__about__.py says 0.2.0, not 0.4.0"


def test_an_unreleased_version_can_be_rehearsed() -> None:
    source = replace(READY, changelog="## 0.2.0 (unreleased)\n\n- New.\n")
    assert release_source.refusals(source, "", TODAY) == []


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git repository of three files, one of them ignored."""
    (tmp_path / "src" / "modserve").mkdir(parents=True)
    (tmp_path / "src" / "modserve" / "__about__.py").write_text('__version__ = "0.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    (tmp_path / ".gitignore").write_text("dist/\n")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(repository: Path, *words: str) -> str:
    names = {f"GIT_{who}_{what}": "a@b.example" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**os.environ, **names, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    command = ["git", "-C", str(repository), *words]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()


def commit(repository: Path) -> str:
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "A commit")
    return git(repository, "rev-parse", "HEAD")


def test_a_checkout_is_read(repository: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    seconds = int(git(repository, "log", "-1", "--format=%ct"))
    assert release_source.read(repository) == Source(head, seconds, "0.2.0", CHANGELOG)
    (repository / "dist").mkdir()
    (repository / "dist" / "ignored").touch()
    (repository / "new").touch()
    git(repository, "tag", "v0.2.0")
    assert release_source.read(repository) == Source(head, seconds, "0.2.0", CHANGELOG, ("?? new",), head)
    second = commit(repository)
    source = release_source.read(repository)
    assert (source.commit, source.tagged) == (second, head)


def test_an_export_has_what_the_commit_has(repository: Path, tmp_path: Path) -> None:
    (repository / "dist").mkdir()
    (repository / "dist" / "ignored").touch()
    (repository / "CHANGELOG.md").write_text("edited")
    head = git(repository, "rev-parse", "HEAD")
    release_source.export(repository, head, tmp_path / "export")
    assert sorted(path.name for path in (tmp_path / "export").iterdir()) == [".gitignore", "CHANGELOG.md", "src"]
    assert (tmp_path / "export" / "CHANGELOG.md").read_text() == CHANGELOG
    with pytest.raises(RuntimeError, match="git archive"):
        release_source.export(repository, "0" * 40, tmp_path / "other")


# --- wheels -----------------------------------------------------------------------------------------------------------


def wheel(path: Path, **files: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name.replace("__", "/").replace("_py", ".py").replace("_so", ".so"), text)
        archive.writestr("modserve-0.2.0.dist-info/METADATA", "Metadata-Version: 2.4\nName: modserve\n")
        archive.writestr("modserve-0.2.0.dist-info/WHEEL", path.name)
    return path


PURE = {"modserve__a_py": "A = 1", "modserve__b_py": "B = 1"}


def test_a_compiled_wheel_is_the_pure_one_with_extension_modules(tmp_path: Path) -> None:
    pure = wheel(tmp_path / "modserve-0.2.0-py3-none-any.whl", **PURE)
    right = wheel(tmp_path / "modserve-0.2.0-cp311-cp311-linux_x86_64.whl", **PURE, modserve__a_so="code")
    assert release_packages.other_files(right, pure) == []
    release_steps.check_wheels([right], pure, "0.2.0")
    wrong = wheel(tmp_path / "modserve-0.2.0-cp312-cp312-linux_x86_64.whl", modserve__a_py="A = 2", modserve__c_py="")
    assert release_packages.other_files(wrong, pure) == [
        "adds modserve/c.py",
        "changes modserve/a.py",
        "lacks modserve/b.py",
    ]
    with pytest.raises(RuntimeError, match=r"cp312.* with extension modules: adds modserve/c\.py, changes"):
        release_steps.check_wheels([right, wrong], pure, "0.2.0")


def test_wheels_of_another_version_and_no_wheels_at_all(tmp_path: Path) -> None:
    pure = wheel(tmp_path / "modserve-0.2.0-py3-none-any.whl", **PURE)
    old = wheel(tmp_path / "modserve-0.1.0-cp311-cp311-linux_x86_64.whl", **PURE)
    with pytest.raises(RuntimeError, match=r"modserve-0\.1\.0-cp311.* is no wheel of 0\.2\.0"):
        release_steps.check_wheels([old], pure, "0.2.0")
    with pytest.raises(RuntimeError, match="there is no compiled wheel"):
        release_steps.check_wheels([], pure, "0.2.0")


def test_wheels_of_a_folder_are_copied_and_those_of_other_machines_known(tmp_path: Path) -> None:
    wheels, target = tmp_path / "wheels", tmp_path / "target"
    wheels.mkdir()
    target.mkdir()
    wheel(target / "modserve-0.2.0-py3-none-any.whl", **PURE)
    for tag in ("cp311-abi3-any", "cp39-cp39-win32"):
        wheel(wheels / f"modserve-0.2.0-{tag}.whl", **PURE)
    wheel(wheels / "modserve-0.2.0-py3-none-any.whl", **PURE)
    compiled = release_steps.compiled_wheels(target / "unused.tar.gz", wheels, target, 0)
    assert [path.name for path in compiled] == [
        "modserve-0.2.0-cp311-abi3-any.whl",
        "modserve-0.2.0-cp39-cp39-win32.whl",
    ]
    assert all(path.parent == target for path in compiled)
    assert "modserve-0.2.0-cp39-cp39-win32.whl" not in [path.name for path in release_steps.for_this_python(compiled)]


# --- provenance -------------------------------------------------------------------------------------------------------


def test_the_statement_is_in_toto_and_slsa(tmp_path: Path) -> None:
    digests = {"b.whl": "2" * 64, "a.tar.gz": "1" * 64}
    origin = "https://example.com/modserve.git"
    document = release_provenance.statement(digests, "0.2.0", "c" * 40, 1_795_000_000, origin, {"hatchling": "1"})
    assert document == {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": "a.tar.gz", "digest": {"sha256": "1" * 64}},
            {"name": "b.whl", "digest": {"sha256": "2" * 64}},
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": release_provenance.BUILD_TYPE,
                "externalParameters": {"version": "0.2.0"},
                "internalParameters": {"SOURCE_DATE_EPOCH": 1_795_000_000},
                "resolvedDependencies": [{"uri": f"git+{origin}", "digest": {"gitCommit": "c" * 40}}],
            },
            "runDetails": {"builder": {"id": release_provenance.BUILDER, "version": {"hatchling": "1"}}},
        },
    }


@pytest.mark.parametrize(
    ("remote", "public"),
    [
        ("https://example.com/a.git", "https://example.com/a.git"),
        ("https://user:secret@example.com/a.git", "https://example.com/a.git"),
        ("ssh://git@example.com/a.git", "ssh://example.com/a.git"),
        ("/home/somebody/modserve", ""),
        ("", ""),
    ],
)
def test_an_address_is_published_without_passwords_and_a_folder_not_at_all(remote: str, public: str) -> None:
    assert release_provenance.public_address(remote) == public
    document = release_provenance.statement({}, "0.2.0", "c" * 40, 0, public, {})
    [source] = document["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert source.get("uri", "git+") == f"git+{public}"


def test_checksums_are_for_sha256sum(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).write_text(name)
    lines = release_provenance.checksums([tmp_path / "b", tmp_path / "a"])
    assert lines == "".join(f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n" for name in "ab")


# --- the container image ----------------------------------------------------------------------------------------------


def programs(folder: Path, **scripts: str) -> str:
    """A PATH with these shell scripts alone."""
    folder.mkdir()
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return str(folder)


def test_an_image_is_built_by_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    debian = dict.fromkeys(("buildah", "debootstrap", "podman", "runc", "iptables"), "")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for number, (scripts, builder) in enumerate(
        [
            ({}, ""),
            ({"docker": "exit 1"}, ""),  # the client alone, without its daemon
            ({"docker": ""}, "docker"),
            ({"docker": "exit 1", **debian}, "scripts/image"),
            ({"buildah": ""}, ""),
        ]
    ):
        monkeypatch.setenv("PATH", programs(tmp_path / str(number), **scripts))
        assert release_image.builder() == builder, scripts
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", programs(tmp_path / "user", **debian))
    assert release_image.builder() == ""


class Docker:
    """In place of the program: what each command prints, and which commands there were."""

    def __init__(self, version: str = "modserve 0.2.0 (compiled)", status: str = "0") -> None:
        self._output = {"run --rm": version, "run --detach": "c1", "port": "127.0.0.1:40123", "inspect": status}
        self.commands: list[str] = []

    def run(self, *command: str, **_: object) -> str:
        words = " ".join(command[1:])
        self.commands.append(words)
        return next((f"{text}\n" for begin, text in self._output.items() if words.startswith(begin)), "")


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Those of servers that were asked for an inference: the first is not listening yet, the others respond."""
    asked_ports: list[int] = []

    def infer(port: int) -> None:
        asked_ports.append(port)
        if len(asked_ports) == 1:
            raise ConnectionRefusedError

    monkeypatch.setattr(release_check, "infer", infer)
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    return asked_ports


def by_docker(docker: Docker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(release_image, "_run", docker.run)
    release_image.build("docker", tmp_path, "0.2.0", "c" * 40, 1_795_000_000, tmp_path / "image.tar")


def test_docker_builds_the_image_tries_it_and_saves_it(
    ports: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    docker = Docker()
    by_docker(docker, monkeypatch, tmp_path)
    assert docker.commands[0] == (
        f"build --build-arg VERSION=0.2.0 --build-arg REVISION={'c' * 40} --build-arg SOURCE_DATE_EPOCH=1795000000 "
        f"--tag modserve:0.2.0 {tmp_path}"
    )
    assert [command.split()[0] for command in docker.commands[1:]] == [
        *("run", "run", "port", "stop", "inspect", "rm", "save")
    ]
    assert "--read-only" in docker.commands[2]
    assert docker.commands[-1] == f"save --output {tmp_path / 'image.tar'} modserve:0.2.0"
    assert ports == [40123, 40123]


@pytest.mark.parametrize(
    ("docker", "message"),
    [
        (Docker(version="modserve 0.2.0 (interpreted)"), r"prints 'modserve 0\.2\.0 \(interpreted\)', not"),
        (Docker(status="137"), "ended with status 137 after SIGTERM"),
    ],
)
def test_an_image_that_does_not_do_is_not_saved_and_its_container_removed(
    docker: Docker, message: str, ports: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", docker="exit 0"))  # for the logs
    with pytest.raises(RuntimeError, match=message):
        by_docker(docker, monkeypatch, tmp_path)
    commands = [command.split()[0] for command in docker.commands]
    assert "save" not in commands
    assert ("rm" in commands) == (commands.count("run") == 2)


# --- the workflows ----------------------------------------------------------------------------------------------------

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step for job in jobs for step in job.get("steps", [])]


def test_the_workflows_run_our_scripts_and_nothing_else() -> None:
    commands = [step["run"] for workflow in WORKFLOWS for step in steps(workflow) if "run" in step]
    assert commands == [
        'scripts/test "$SCOPE"',
        "scripts/wheels --all dist/wheels",
        'scripts/release --wheels dist/wheels "$GITHUB_REF_NAME"',
    ]
    calls = {
        workflow.name: job["with"]["scope"]
        for workflow in WORKFLOWS
        for job in yaml.safe_load(workflow.read_text())["jobs"].values()
        if "uses" in job
    }
    assert calls == {"release.yml": "--both"}
    assert "inputs.scope || '--all'" in (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert "exec scripts/test --all\n" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit_with_the_version_beside_it(workflow: Path) -> None:
    text = workflow.read_text()
    actions = re.findall(r"uses: (?!\./)(.*)", text)
    assert actions
    assert [line for line in actions if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []
    assert "://" not in text
    assert yaml.safe_load(text)["permissions"] == {}
