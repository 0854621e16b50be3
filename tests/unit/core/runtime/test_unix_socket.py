"""Unix sockets that servers listen on: whose file is replaced, whose is not, and what is removed."""

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from modserve.core.runtime import unix_socket
from modserve.core.runtime.unix_socket import SocketFile


@pytest.fixture
def path(tmp_path: Path) -> Iterator[str]:
    """As it is in the folder: pytest's may be too long for a socket."""
    before = Path.cwd()
    os.chdir(tmp_path)
    yield "http.sock"
    os.chdir(before)


def connected(path: str) -> bool:
    with closing(socket.socket(socket.AF_UNIX)) as client:
        try:
            client.connect(path)
        except OSError:
            return False
        return True


def test_paths() -> None:
    assert unix_socket.path_of("unix:/run/x.sock") == unix_socket.path_of("unix:///run/x.sock") == "/run/x.sock"
    assert unix_socket.path_of("unix:run/x.sock") == "run/x.sock"
    assert unix_socket.path_of("0.0.0.0") == unix_socket.path_of("unix") == unix_socket.path_of("") == ""
    assert unix_socket.format_address("unix:///run/x.sock") == "unix:/run/x.sock"
    assert unix_socket.format_address("::1") == "::1"


def test_paths_that_no_socket_has() -> None:
    for address in ("unix:", "unix:\0x"):
        with pytest.raises(ValueError, match="has no path; expected unix:PATH"):
            unix_socket.check(address)
    unix_socket.check(f"unix:/{'x' * 106}")
    unix_socket.check("x" * 200)  # a host, about which others say something
    with pytest.raises(ValueError, match="has 108 bytes, and those of Unix sockets at most 107"):
        unix_socket.check(f"unix:/{'x' * 107}")
    with pytest.raises(ValueError, match="has 109 bytes"):
        unix_socket.check(f"unix:/{'ü' * 54}")


def test_the_server_s_user_and_group_may_connect(path: str) -> None:
    with closing(unix_socket.listening(path, 5)) as opened:
        mode = os.stat(path).st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o660
        assert connected(path)
        assert opened.getsockname() == path


def test_the_file_of_a_dead_server_is_replaced(path: str) -> None:
    unix_socket.listening(path, 5).close()
    assert os.path.exists(path)
    assert not connected(path)
    unix_socket.probe(path)
    assert not os.path.exists(path)
    unix_socket.listening(path, 5).close()
    with closing(unix_socket.listening(path, 5)):
        assert connected(path)


def test_that_of_a_living_server_is_not(path: str) -> None:
    with closing(unix_socket.listening(path, 1)), ExitStack() as stack:
        for _ in range(3):  # until no more clients may wait
            waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
            waiting.setblocking(False)
            waiting.connect_ex(path)
            for attempt in (unix_socket.probe, lambda path: unix_socket.listening(path, 5)):
                with pytest.raises(OSError, match="in use") as caught:
                    attempt(path)
                assert caught.value.errno == errno.EADDRINUSE


def test_nothing_else_is_replaced(path: str) -> None:
    Path(path).write_text("precious")
    with pytest.raises(FileExistsError):
        unix_socket.listening(path, 5)
    assert Path(path).read_text() == "precious"
    Path("link").symlink_to(path)
    with pytest.raises(FileExistsError):
        unix_socket.listening("link", 5)
    with pytest.raises(FileNotFoundError):
        unix_socket.listening("nosuch/http.sock", 5)
    with pytest.raises(NotADirectoryError):
        unix_socket.listening(f"{path}/http.sock", 5)


def test_a_file_is_removed_once_and_only_by_its_owner(path: str) -> None:
    with closing(unix_socket.listening(path, 5)) as first:
        file = SocketFile(first)
        os.unlink(path)
        with closing(unix_socket.listening(path, 5)) as second:
            file.remove()
            assert connected(path)
            own = SocketFile(second)
            own.remove()
            assert not os.path.exists(path)
            own.remove()


def test_a_socket_that_is_inherited(path: str) -> None:
    with closing(unix_socket.listening(path, 5)) as parent:
        parent.set_inheritable(True)
        address = unix_socket.format_inherited(parent)
        assert unix_socket.path_of(address) == path
        assert unix_socket.format_address(address) == f"unix:{path}"
        child = os.dup(parent.fileno())
        with closing(unix_socket.open_listener(f"fd@{child}", 5)) as opened:
            assert not opened.get_inheritable()
            assert connected(path)
        assert connected(path)  # the parent still has it
