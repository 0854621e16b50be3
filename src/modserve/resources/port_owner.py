"""Which process has a port of this machine, from Linux's /proc. Only root sees the processes of other users."""

from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_LISTENING = "0A"
"""The state of a socket that listens, as in the kernel's ``tcp_states.h``."""
_LONGEST = 100


def owner(port: int, proc: Path = _PROC) -> str:
    """The process that listens on a TCP port, such as ``process 4711 (python -m modserve)``; empty if nobody tells."""
    process = listener(port, proc)
    return f"process {process.name} ({_command(process)})" if process is not None else ""


def listener(port: int, proc: Path = _PROC) -> Path | None:
    """The folder in /proc of the process that listens on a TCP port; None if nobody does, or another user."""
    sockets = set(_listening(port, proc))
    if not sockets:
        return None
    processes = sorted(_processes(proc), key=lambda each: int(each.name))
    return next((process for process in processes if sockets & set(_open_sockets(process))), None)


def _listening(port: int, proc: Path) -> Iterator[str]:
    """The inodes of the sockets that listen on a port."""
    for name in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if len(fields) > 9 and fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _processes(proc: Path) -> Iterator[Path]:
    try:
        yield from (each for each in proc.iterdir() if each.name.isdecimal())
    except OSError:
        return


def _open_sockets(process: Path) -> Iterator[str]:
    try:
        files = list((process / "fd").iterdir())
    except OSError:  # of another user, or gone
        return
    for file in files:
        try:
            target = str(file.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target[len("socket:[") : -1]


def _command(process: Path) -> str:
    """Which program it is. Its other words may be secrets, which do not belong into a log."""
    try:
        words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "?"
    shown = [words[0].rpartition("/")[2] or "?"]
    if shown[0].startswith("python"):
        shown += words[1:3] if words[1:2] == ["-m"] else [word for word in words[1:2] if not word.startswith("-")]
    return "".join(character if character.isprintable() else "?" for character in " ".join(shown))[:_LONGEST]
