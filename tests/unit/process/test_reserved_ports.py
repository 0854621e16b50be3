"""Port numbers that several processes share."""

import socket
from contextlib import closing

import pytest

from modserve.process.ports import PortError
from modserve.process.reserved_ports import Reservation

LOOPBACK = "127.0.0.1"


def listening(port: int) -> socket.socket:
    return socket.create_server((LOOPBACK, port), reuse_port=True)


def test_a_free_port_is_kept_for_those_who_share_it() -> None:
    reservation = Reservation()
    reservation.add("HTTP", LOOPBACK, 0, False)
    (option,) = reservation.options
    name, _, number = option.partition("=")
    assert name == "--http-port"
    with closing(listening(int(number))) as first, closing(listening(int(number))) as second:
        for _ in range(20):
            with closing(socket.create_connection((LOOPBACK, int(number)), 5)):
                pass
        assert first.getsockname() == second.getsockname()
    reservation.close()


def test_a_port_of_another_server_is_refused_even_if_that_shares_it() -> None:
    with closing(listening(0)) as other:
        number = other.getsockname()[1]
        reservation = Reservation()
        with pytest.raises(PortError, match=r"cannot open the gRPC port .* '--grpc-port' chooses another one"):
            reservation.add("gRPC", LOOPBACK, number, False)
        reservation.add("gRPC", LOOPBACK, number, True)
        reservation.close()


def test_an_address_that_is_not_here() -> None:
    with pytest.raises(PortError, match="'--http-address' chooses another one"):
        Reservation().add("HTTP", "192.0.2.1", 0, False)


def test_descriptors_outlive_the_program() -> None:
    reservation = Reservation()
    reservation.add("metrics", LOOPBACK, 0, False)
    (descriptor,) = reservation.hand_over()
    with closing(socket.socket(fileno=descriptor)) as kept:
        assert kept.get_inheritable()
    assert reservation.sockets == []
