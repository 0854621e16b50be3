"""Other programs that a load runs and waits for."""

import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from modserve.core.errors import invalid

Ended = subprocess.CompletedProcess[bytes]


def run(
    command: Sequence[str],
    doing: str,
    limit_s: float,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    pass_fds: Collection[int] = (),
    together: bool = False,
) -> Ended:
    """Run a program to its end, with any exit status. Blocks. `together`: all its output is in ``stdout``.

    Raises INVALID_ARG, which begins with `doing`, if it cannot be run or is not over in time.
    """
    try:
        return subprocess.run(
            command,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if together else subprocess.PIPE,
            pass_fds=pass_fds,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise invalid(f"{doing}: it did not finish within {limit_s:.0f} s") from error
    except OSError as error:
        raise invalid(f"{doing}: '{command[0]}' cannot be run: {error.strerror}") from error


def status(ended: Ended) -> str:
    code = ended.returncode
    return f"signal {-code}" if code < 0 else f"status {code}"


def last_lines(output: bytes, count: int = 10) -> str:
    """Return the last lines of a program's output, indented."""
    lines = [line.rstrip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    return "\n".join(f"  {line}" for line in lines[-count:])
