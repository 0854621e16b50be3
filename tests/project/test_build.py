"""When installing compiles, which form a start takes, and that a form is never used with another source."""

import fcntl
import json
import os
import re
import subprocess
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

import compiled_form
import hatch_build
import pytest

from modserve.form import stale_module


class Hook(hatch_build.WheelContents):
    """The hook, with a compiler and a build of the test's."""

    def __init__(self, root: Path, form: object, target: str = "wheel") -> None:
        super().__init__(str(root), {"requires": ["mypy"]}, None, None, str(root), target)  # type: ignore[arg-type]
        self.form = form

    def _compiled_form(self) -> Any:
        return self.form


class Form:
    """In place of `scripts/compiled_form.py`."""

    def __init__(self, compiler: str = "/usr/bin/cc", failure: BaseException | None = None) -> None:
        self._compiler, self._failure = compiler, failure
        self.targets: list[Path] = []

    def compiler(self) -> str:
        return self._compiler

    def make(self, _root: Path, target: Path, forms: Path) -> Path:
        self.targets.append(target)
        if self._failure is not None:
            raise self._failure
        return forms / "digest"

    def files(self, form: Path) -> list[Path]:
        return [form / "modserve" / "a.so"]


def wheel(hook: Hook, version: str = "standard") -> dict[str, Any]:
    data: dict[str, Any] = {"force_include": {}}
    hook.initialize(version, data)
    return data


@pytest.fixture
def wish(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda value: monkeypatch.setattr(hatch_build, "_WISH", value)


@pytest.mark.parametrize(
    ("value", "compiler", "compiles"),
    [("", "/usr/bin/cc", True), ("", "", False), ("0", "/usr/bin/cc", False), ("1", "", True), ("1", "/cc", True)],
)
def test_a_wheel_is_compiled_where_a_compiler_is_there(
    wish: Any, tmp_path: Path, value: str, compiler: str, compiles: bool
) -> None:
    wish(value)
    hook = Hook(tmp_path, Form(compiler))
    assert hook.dependencies() == (["mypy"] if compiles else [])
    assert wheel(hook).get("infer_tag", False) == compiles


@pytest.mark.parametrize("failure", [SystemExit("the C compiler failed"), RuntimeError("mypyc"), OSError("disk full")])
def test_a_build_that_fails_leaves_a_wheel_of_pure_python(
    wish: Any, tmp_path: Path, failure: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    hook = Hook(tmp_path, Form(failure=failure))
    wish("")
    data = wheel(hook)
    assert list(data["force_include"].values()) == ["modserve/example_models"]
    assert "pure_python" not in data
    assert str(failure) in capsys.readouterr().err
    wish("1")
    with pytest.raises(type(failure)):
        wheel(hook)


def test_nothing_is_compiled_for_an_editable_installation_or_a_source_archive(wish: Any, tmp_path: Path) -> None:
    wish("1")
    form = Form()
    assert wheel(Hook(tmp_path, form), "editable") == {"force_include": {}}
    assert wheel(Hook(tmp_path, form, "sdist")) == {"force_include": {}}
    assert form.targets == []


def test_a_source_that_cannot_be_written_to_is_compiled_elsewhere(
    wish: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wish("")
    (tmp_path / "build").write_text("no folder can be made here")
    form = Form()
    data = wheel(Hook(tmp_path, form))
    [target] = form.targets
    assert tmp_path not in target.parents
    packed = target.parent / "forms" / "digest" / "modserve" / "a.so"
    assert data["force_include"][str(packed)] == "modserve/a.so"
    target.parent.rmdir()


# Forms that are kept


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A source of two modules, one of them compiled."""
    package = tmp_path / "src" / "modserve"
    package.mkdir(parents=True)
    (package / "a.py").write_text("A = 1\n")
    (package / "b.py").write_text("B = 1\n")
    (tmp_path / "pyproject.toml").write_text(
        '[tool.hatch.build.hooks.custom]\ncompiled = ["a"]\n[tool.hatch.build.hooks.custom.interpreted]\n'
    )
    return tmp_path


@pytest.fixture
def build(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Compile, keep: the folder. The compiler is the test's, and says when it began."""
    began: list[str] = []

    def compiled(_files: object, _cores: int) -> None:
        began.append("")
        Path("modserve/a.so").write_text("code")
        Path(f"{compiled_form.LIBRARY}.so").write_text("code")

    monkeypatch.setattr(compiled_form, "EXTENSION_SUFFIXES", [".so"])
    monkeypatch.setattr(compiled_form, "_build", compiled)

    def make() -> Path:
        return compiled_form.make(checkout, checkout / "build" / "compiled", forms=checkout / "build" / "forms")

    make.began = began  # type: ignore[attr-defined]
    return make


def kept(checkout: Path) -> Path | None:
    return compiled_form.kept(checkout, checkout / "build" / "forms")


def test_the_form_of_a_source_is_found_again_and_that_of_another_is_not(checkout: Path, build: Any) -> None:
    assert kept(checkout) is None
    folder = build()
    assert kept(checkout) == folder
    assert (folder / "modserve" / "a.so").exists()
    assert (folder / f"{compiled_form.LIBRARY}.so").exists()
    source = checkout / "src" / "modserve" / "b.py"
    source.write_text("B = 2\n")
    assert kept(checkout) is None
    source.write_text("B = 1\n")
    assert kept(checkout) == folder
    assert build() == folder
    assert len(build.began) == 1


def test_a_kept_form_stays_as_it_is_while_another_is_made(checkout: Path, build: Any) -> None:
    folder = build()
    (checkout / "src" / "modserve" / "a.py").write_text("A = 2\n")
    assert build() != folder
    assert (folder / "modserve" / "a.py").read_text() == "A = 1\n"


def test_the_last_few_forms_are_kept(checkout: Path, build: Any) -> None:
    folders = []
    for number in range(5):
        (checkout / "src" / "modserve" / "a.py").write_text(f"A = {number}\n")
        folders.append(build())
        os.utime(folders[-1], (number, number))
    assert {path.name for path in (checkout / "build" / "forms").iterdir()} == {path.name for path in folders[-3:]}


def test_a_source_that_is_edited_while_it_is_compiled_has_no_form(
    checkout: Path, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was compiled is the form of the source as it was, also if that comes back."""
    source = checkout / "src" / "modserve" / "a.py"
    compile_here = compiled_form._build

    def compiled(files: Any, cores: int) -> None:
        source.write_text("A = 2\n")
        compile_here(files, cores)

    monkeypatch.setattr(compiled_form, "_build", compiled)
    folder = build()
    assert kept(checkout) is None
    assert (folder / "modserve" / "a.py").read_text() == "A = 1\n"
    source.write_text("A = 1\n")
    assert kept(checkout) == folder


def test_a_form_has_what_a_wheel_packs(checkout: Path, build: Any) -> None:
    folder = build()
    names = {str(path.relative_to(folder)) for path in compiled_form.files(folder)}
    assert names == {"modserve/a.so", "modserve/compiled.json", f"{compiled_form.LIBRARY}.so"}


def test_of_two_builds_at_once_the_second_finds_the_work_done(
    checkout: Path, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked, waiting = threading.Event(), threading.Event()
    compile_here = compiled_form._build

    def compiled(files: Any, cores: int) -> None:
        locked.set()
        assert waiting.wait(10)
        compile_here(files, cores)

    monkeypatch.setattr(compiled_form, "_build", compiled)
    first = threading.Thread(target=build)
    first.start()
    assert locked.wait(10)
    script = (
        "import sys; sys.path.insert(0, sys.argv[2]); import compiled_form; from pathlib import Path\n"
        "compiled_form.EXTENSION_SUFFIXES = ['.so']\n"
        "print('asks', flush=True)\n"
        "root = Path(sys.argv[1]); compiled_form.make(root, root / 'build' / 'compiled')"
    )
    words = [sys.executable, "-c", script, str(checkout), str(compiled_form.ROOT / "scripts")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as second:
        assert second.stdout is not None
        assert second.stderr is not None
        assert second.stdout.readline() == "asks\n"
        waiting.set()
        assert "up to date" in second.stderr.read()
    first.join()
    assert len(build.began) == 1


def test_a_form_of_another_source_is_told(checkout: Path, build: Any) -> None:
    package = build() / "modserve"
    assert stale_module(package) == ""
    (package / "b.py").write_text("not compiled, so that it does not matter")
    assert stale_module(package) == ""
    (package / "a.py").write_text("A = 2\n")
    assert stale_module(package) == "modserve/a.py"
    (package / "a.py").unlink()
    assert stale_module(package) == "modserve/a.py"
    (package / "compiled.json").unlink()
    assert stale_module(package) == "compiled.json"


def test_the_record_is_of_the_source_that_was_compiled(checkout: Path, build: Any) -> None:
    record = json.loads((build() / compiled_form.RECORD).read_text())
    assert record == {"modserve/a.py": zlib.crc32(b"A = 1\n")}


def test_the_build_in_the_background_leaves_the_machine_to_others(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "compile"
    script.write_text('#!/bin/sh\necho "$@" "$(nice)"\n')
    script.chmod(0o755)
    program = "import sys; sys.path.insert(0, sys.argv[2]); import compiled_form; from pathlib import Path\n"
    program += "print(compiled_form.later(Path(sys.argv[1])))"
    words = [sys.executable, "-c", program, str(tmp_path), str(compiled_form.ROOT / "scripts")]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert re.search(r"for about 4 minutes at the lowest priority \(build/compile\.log\).* MODSERVE_COMPILED=0", text)
    with open(tmp_path / compiled_form.LOG) as log:
        fcntl.flock(log, fcntl.LOCK_SH)  # free once the script has ended
        assert log.read() == "--one-job 19\n"
