"""Unix sockets and the admin port among the places where a server listens: what is refused, reserved, and told."""

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pydantic import ValidationError

from modserve import Settings
from modserve.core.runtime import unix_socket
from modserve.process.console import HttpAddress
from modserve.process.port_conflict import advice
from modserve.process.ports import PortError, opening
from modserve.process.reserved_ports import Reservation, reserve
from modserve.process.supervisor import HeldSockets
from modserve.settings import from_command_line
from modserve.settings.listen_addresses import listen_addresses


@pytest.fixture
def place(tmp_path: Path) -> Iterator[str]:
    before = Path.cwd()
    os.chdir(tmp_path)
    yield "unix:http.sock"
    os.chdir(before)


def settings(*words: str) -> Settings:
    return from_command_line(["--model-repository=x", *words]).settings


def listed(*words: str) -> list[str]:
    return [f"{each.name} {each}" for each in listen_addresses(settings(*words))]


def test_where_a_server_listens() -> None:
    assert listed() == ["HTTP 0.0.0.0:8000", "gRPC 0.0.0.0:8001", "metrics 0.0.0.0:8002"]
    assert listed("--http-address=unix:/run/h") == ["HTTP unix:/run/h", "gRPC 0.0.0.0:8001", "metrics 127.0.0.1:8002"]
    assert listed("--admin-address=:8003") == ["HTTP 0.0.0.0:8000", "gRPC 0.0.0.0:8001", "admin 0.0.0.0:8003"]
    assert listed("--admin-address=unix:///run/a", "--metrics-port=9", "--allow-http=false") == [
        "gRPC 0.0.0.0:8001",
        "metrics 0.0.0.0:9",
        "admin unix:/run/a",
    ]
    assert listed("--admin-address=localhost:1", "--metrics-address=unix:/run/m")[2:] == [
        "metrics unix:/run/m",
        "admin localhost:1",
    ]
    assert listed("--admin-address=:1", "--metrics-address=10.0.0.1", "--allow-metrics=false")[2:] == [
        "admin 0.0.0.0:1"
    ]


def test_an_admin_port_has_the_tls_of_http_and_a_socket_has_none() -> None:
    tls = ("--http-use-ssl=true", "--http-server-cert=c", "--http-server-key=k")
    by_port = {each.name: each.secure for each in listen_addresses(settings(*tls, "--admin-address=[::1]:1"))}
    assert by_port == {"HTTP": True, "gRPC": False, "admin": True}
    by_socket = listen_addresses(settings(*tls, "--admin-address=unix:/run/a"))
    assert not by_socket[-1].secure
    assert listen_addresses(settings("--admin-address=[::1]:1"))[-1][1:3] == ("::1", 1)


@pytest.mark.parametrize("text", ["8003", "host", "host:", "host:99999", "::1:8003", "http://host:8003", "a b:1"])
def test_what_is_no_admin_address(text: str) -> None:
    with pytest.raises(ValidationError, match="is not an address; expected HOST:PORT, :PORT or unix:PATH"):
        Settings(model_repository="x", admin_address=text)


@pytest.mark.parametrize("option", ["http_address", "grpc_address", "metrics_address", "admin_address"])
def test_a_path_that_is_too_long(option: str) -> None:
    with pytest.raises(ValidationError, match="has 150 bytes, and those of Unix sockets at most 107"):
        Settings(model_repository="x", **{option: f"unix:/{'x' * 149}"})


def refusal(name: str, path: str) -> str:
    with pytest.raises(PortError) as caught, opening(name, f"unix:{path}", 0):
        unix_socket.listening(path, 5)
    return advice(caught.value, [])


def test_why_a_socket_cannot_be_opened(place: str) -> None:
    path = unix_socket.path_of(place)
    another = "'--http-address' chooses another place"
    assert refusal("HTTP", "nosuch/x") == (
        f"cannot open the HTTP socket unix:nosuch/x: there is no directory nosuch; make it, or {another}"
    )
    Path("file").touch()
    assert refusal("admin", "file") == (
        "cannot open the admin socket unix:file: there is something that is no socket; remove it, or "
        "'--admin-address' chooses another place"
    )
    assert refusal("HTTP", "file/x") == f"cannot open the HTTP socket unix:file/x: file is no directory; {another}"
    with closing(unix_socket.listening(path, 5)):
        assert refusal("HTTP", path) == f"cannot open the HTTP socket {place}: another server listens there; {another}"


def test_an_admin_port_in_use_has_its_own_option() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        number = other.getsockname()[1]
        with (
            pytest.raises(PortError, match="'--admin-address' chooses another one") as caught,
            opening("admin", "127.0.0.1", number),
            socket.create_server(("127.0.0.1", number)),
        ):
            pass
    assert f"--admin-address=127.0.0.1:{number + 10}" in advice(caught.value, [f"--admin-address=127.0.0.1:{number}"])


def test_workers_inherit_sockets_and_share_ports(place: str) -> None:
    options = ("--http-address", place), ("--admin-address", "127.0.0.1:0"), ("--allow-grpc", "false")
    reservation = reserve(settings(*[f"{name}={value}" for name, value in options]))
    inherited, port = reservation.options
    assert unix_socket.path_of(inherited.removeprefix("--http-address=")) == "http.sock"
    assert port.startswith("--admin-address=127.0.0.1:")
    assert not port.endswith(":0")
    path = unix_socket.path_of(place)
    held = HeldSockets(reservation.hand_over())
    assert [each.get_inheritable() for each in (*held._unix, *held._holding)] == [True, False]
    assert os.path.exists(path)
    held.close()
    held.close()
    assert not os.path.exists(path)
    for each in held._holding:
        each.close()


def test_a_reservation_that_fails_leaves_no_file(place: str) -> None:
    with pytest.raises(PortError, match=r"cannot open the gRPC socket unix:nosuch/x"):
        reserve(settings(f"--http-address={place}", "--grpc-address=unix:nosuch/x"))
    assert not os.path.exists(unix_socket.path_of(place))
    reservation = Reservation()
    reservation.add("HTTP", place, 0, False)
    reservation.close()
    assert os.listdir() == []


def test_calls_to_try() -> None:
    place = HttpAddress("unix:/run/my modserve.sock", 0, keyed=True)
    assert place.curl("/v2") == (
        "curl --unix-socket '/run/my modserve.sock' -H \"x-api-key: $MODSERVE_API_KEY\" http://localhost/v2"
    )
    assert place.modserve("infer", "simple") == "modserve infer simple --url 'unix:/run/my modserve.sock'"
    secure = HttpAddress("unix:/run/x", 0, tls=True)
    assert secure.curl("/v2") == "curl --unix-socket /run/x -k https://localhost/v2"
