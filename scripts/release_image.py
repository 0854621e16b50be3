"""The container image of a release, built and tried by what this machine has for that.

Docker builds from the base image that the Dockerfile names. Where there is no Docker, `scripts/image` builds with
Debian's buildah, if that is installed, on a base image that it makes from Debian's packages.
"""

import os
import shutil
import subprocess
import time
from pathlib import Path

import release_check

_DEBIAN = ("buildah", "debootstrap", "podman", "runc", "iptables")
"""The programs that `scripts/image` needs; it also needs root."""
_SECONDS = 3600.0
_START_SECONDS = 60.0


def builder() -> str:
    """``docker``, ``scripts/image``, or empty."""
    if shutil.which("docker") and not subprocess.run(["docker", "info"], capture_output=True).returncode:
        return "docker"
    return "scripts/image" if all(map(shutil.which, _DEBIAN)) and os.geteuid() == 0 else ""


def build(program: str, checkout: Path, version: str, commit: str, seconds: int, target: Path) -> None:
    """Build the image of a checkout, try it, and write it to `target` as ``docker load`` takes it.

    Raises RuntimeError with what the programs say if something is not as it should be.
    """
    if program == "docker":
        _by_docker(checkout, version, commit, seconds, target)
    else:
        environment = {**os.environ, "IMAGE": str(target), "VERSION": version, "REVISION": commit}
        _run("scripts/image", cwd=checkout, environment=environment)


def _by_docker(checkout: Path, version: str, commit: str, seconds: int, target: Path) -> None:
    tag = f"modserve:{version}"
    arguments = {"VERSION": version, "REVISION": commit, "SOURCE_DATE_EPOCH": str(seconds)}
    options = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    _run("docker", "build", *options, "--tag", tag, str(checkout))
    line = _run("docker", "run", "--rm", "--network=none", tag, "modserve", "--version").strip()
    if line != f"modserve {version} (compiled)":
        raise RuntimeError(f"modserve --version in the image prints '{line}', not 'modserve {version} (compiled)'")
    locked = ["--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
    container = _run("docker", "run", "--detach", *locked, "--publish=127.0.0.1::8000", tag, "--example").strip()
    try:
        _answers(int(_run("docker", "port", container, "8000/tcp").split()[0].rpartition(":")[2]))
        _run("docker", "stop", "-t", "30", container)
        status = _run("docker", "inspect", "--format={{.State.ExitCode}}", container).strip()
        if status != "0":
            raise RuntimeError(f"the container ended with status {status} after SIGTERM")
    except BaseException:
        subprocess.run(["docker", "logs", "--tail=50", container])
        raise
    finally:
        _run("docker", "rm", "--force", container)
    _run("docker", "save", "--output", str(target), tag)


def _answers(port: int) -> None:
    """Wait until the server of a container answers as it should. A container cannot tell when it listens."""
    end = time.monotonic() + _START_SECONDS
    while True:
        try:
            return release_check.infer(port)
        except (OSError, RuntimeError) as error:  # nobody listens, or the model is still loading
            if time.monotonic() > end:
                raise RuntimeError(f"the container did not answer: {error}") from error
        time.sleep(0.2)


def _run(*command: str, cwd: Path | None = None, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=_SECONDS)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout
