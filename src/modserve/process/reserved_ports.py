"""Ports and Unix sockets shared by workers, reserved before the first worker starts."""

import errno
import os
import socket

from modserve.core.runtime import unix_socket
from modserve.process.ports import PortOpenings, RefusedPort, opening
from modserve.settings import Settings
from modserve.settings.listen_addresses import listen_addresses

_BACKLOG = 2048


class Reservation:
    """Reserves port numbers by sockets that are bound but do not listen, so that they never get connections.

    Unix sockets listen: the workers inherit them, and a free one accepts the connection.
    """

    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []
        self.options: list[str] = []
        """Options that tell a worker its shared ports."""

    def add(self, name: str, address: str, port: int, shared: bool) -> None:
        """Reserve the port of the front end `name` on all addresses of a host name. Raises PortError.

        0 chooses a free port. `shared`: other servers may use the port, too.
        """
        if path := unix_socket.path_of(address):
            with opening(name, address, port):
                listening = unix_socket.listening(path, _BACKLOG)
            self.sockets.append(listening)
            self.options.append(f"--{name.lower()}-address={unix_socket.format_inherited(listening)}")
            return
        with opening(name, address, port):
            if port and not shared:
                for probe in _bind(address, port, share=False):
                    probe.close()
            bound = _bind(address, port, share=True)
            self.sockets += bound
        number = bound[0].getsockname()[1]
        self.options.append(RefusedPort(name, address, 0, "").option_with(number))

    def hand_over(self) -> list[int]:
        """Return the sockets' descriptors, which stay open when this process executes another program."""
        descriptors = [each.detach() for each in self.sockets]
        self.sockets.clear()
        for descriptor in descriptors:
            os.set_inheritable(descriptor, True)
        return descriptors

    def close(self) -> None:
        for each in self.sockets:
            if each.family == socket.AF_UNIX:
                unix_socket.SocketFile(each).remove()
            each.close()
        self.sockets.clear()


def reserve(settings: Settings) -> Reservation:
    """Reserve the ports of all enabled front ends. Raises PortError, which names all refused ones."""
    reservation = Reservation()
    openings = PortOpenings()
    try:
        for each in listen_addresses(settings):
            with openings.opening(each.name, each.address, each.port):
                reservation.add(each.name, each.address, each.port, each.shared)
        openings.end()
    except BaseException:
        reservation.close()
        raise
    return reservation


def _bind(address: str, port: int, share: bool) -> list[socket.socket]:
    """Return a bound socket for each address of `address`, all with one number. Raises OSError.

    Addresses that this machine does not have are ignored if there are others.
    """
    bound: list[socket.socket] = []
    places = socket.getaddrinfo(address or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    missing: OSError | None = None
    try:
        for family, kind, protocol, _, place in places:
            each = socket.socket(family, kind, protocol)
            bound.append(each)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if share:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            number = bound[0].getsockname()[1] if len(bound) > 1 else port
            try:
                each.bind((place[0], number, *place[2:]))
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
                missing = error
                bound.pop().close()
        if missing is not None and not bound:
            raise missing
    except BaseException:
        for each in bound:
            each.close()
        raise
    return bound
