"""Only regular files are opened of what others put into a repository: a pipe or a device fails, and holds nobody."""

import ast
import errno
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import modserve
from modserve.core.files import regular_file

SOURCES = Path(modserve.__file__).parent
OPENERS = ("open", "read_bytes", "read_text")
OTHERS = {
    "__main__.py": "the null device",
    "backends/auto": "the server's own notes, and the processor's description",
    "backends/batch_trial.py": "the server's own notes",
    "backends/fil": "a program of its own, of files that were looked at before, and what it wrote",
    "backends/generation/program": "a program of its own; the guard of loads looks at the files of the version",
    "backends/onnxruntime": "through `regular_file`",
    "backends/python/archive.py": "a program with the standard library alone; the caller checks the file",
    "backends/python/environment_cache.py": "the server's own notes",
    "backends/pytorch/archive.py": "a member of a zip archive, which was opened before",
    "backends/pytorch/trust.py": "a member of a zip archive, which was opened before",
    "backends/vllm/installation.py": "files of a package",
    "client": "a user's own files",
    "commands": "a user's own files",
    "core/pip_command.py": "a file of this package",
    "core/runtime/unix_socket.py": "a folder",
    "execution/placement.py": "the system's limits",
    "form.py": "modserve's own files",
    "frontends/http/single_page.py": "modserve's own files",
    "frontends/http/console": "the system's counters",
    "frontends/http/rest/model_links.py": "the server's own notes",
    "frontends/http/wire": "nothing: whether a descriptor is left",
    "models/residency": "the system's counters",
    "observability": "the system's counters, and where the server writes",
    "pb": "modserve's own files",
    "process": "where the server writes",
    "recording": "where the server writes",
    "repository/remote": "the server's own copies, and a user's own credentials",
    "resources": "the system's counters, and shared memory, which has no pipes",
    "settings/sources.py": "a user's own file, which may be a pipe",
    "access/key_file.py": "the file that a command writes",
    "workers": "the server's own notes",
    "cli.py": "the null device",
}


def calls(tree: ast.Module) -> Iterator[ast.Call]:
    """Those which open files by a path; a method `open` of other objects has no mode."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id == "open":
            yield node
        elif isinstance(called, ast.Attribute) and called.attr in OPENERS:
            whose = called.value.id if isinstance(called.value, ast.Name) else ""
            mode = next((arg.value for arg in node.args if isinstance(arg, ast.Constant)), None)
            opens = called.attr != "open" or mode in ("rb", "r") or whose == "os"
            if opens and whose not in ("regular_file", "reading"):
                yield node


def test_files_are_opened_by_the_one_function_that_looks_what_they_are() -> None:
    found: dict[str, list[int]] = {}
    for path in sorted(SOURCES.rglob("*.py")):
        name = path.relative_to(SOURCES).as_posix()
        if name == "core/files/regular_file.py" or any(name == each or name.startswith(f"{each}/") for each in OTHERS):
            continue
        lines = [call.lineno for call in calls(ast.parse(path.read_text("utf-8")))]
        if lines:
            found[name] = lines
    assert found == {}, "open them with core/files/regular_file.py, or say in OTHERS why that is not needed"


def pipe(path: Path) -> None:
    os.mkfifo(path)


def bound_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("make", "text"),
    [(pipe, "it is a pipe"), (device, "it is a device"), (bound_socket, "it is a socket")],
)
def test_what_is_no_file_is_refused_at_once(
    tmp_path: Path, make: Callable[[Path], None], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # paths of sockets are short
    path = Path("it")
    make(path)
    for look in (
        regular_file.open_regular,
        regular_file.read_bytes,
        regular_file.read_text,
        regular_file.check_regular,
    ):
        with pytest.raises(OSError, match=text):
            look(path)


def test_what_is_missing_or_a_folder_is_said_as_always(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        regular_file.read_bytes(tmp_path / "none")
    with pytest.raises(IsADirectoryError) as caught:
        regular_file.read_bytes(tmp_path)
    assert (caught.value.errno, caught.value.filename) == (errno.EISDIR, str(tmp_path))
    regular_file.check_regular(tmp_path)


def test_a_file_is_read_also_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes("ä\r\nb\rc\n".encode())
    (tmp_path / "link").symlink_to("file")
    assert regular_file.read_bytes(tmp_path / "link") == "ä\r\nb\rc\n".encode()
    assert regular_file.read_text(tmp_path / "link") == "ä\nb\nc\n"
    regular_file.check_regular(tmp_path / "link")
