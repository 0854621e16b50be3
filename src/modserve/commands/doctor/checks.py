"""The checks of ``modserve doctor``, a function each. Their sources are arguments, so that tests can replace them."""

import asyncio
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from modserve.__about__ import __version__
from modserve.backends.inventory import BackendEntry, inventory
from modserve.client.address import Address
from modserve.core.pip_command import pip_install
from modserve.execution.placement import available_cores
from modserve.form import form
from modserve.process.ports import PortError, opening, probe_port
from modserve.resources.machine_memory import read_memory_limit
from modserve.resources.posix import for_connections, listener, raise_limit
from modserve.settings import Settings
from modserve.settings.listen_addresses import ListenAddress, listen_addresses

from ..errors import UnreachableError
from ..terminal import count, plural, size
from .keyless_call import ask

OK, WARNING, PROBLEM = "ok", "warning", "problem"
_CGROUP = Path("/sys/fs/cgroup")
_MIB = 1 << 20


class Check(NamedTuple):
    """Check result. `text` is the finding, `advice` the remedy for a warning or problem."""

    level: str
    name: str
    text: str
    advice: str = ""


def _check(name: str, text: str, problem: str = "", level: str = WARNING) -> Check:
    """Make a check, which is OK without `problem`: advice on what to do."""
    return Check(level if problem else OK, name, text, problem)


def check_versions(own_form: str = form()) -> Iterator[Check]:
    """Report the versions of this package and its foundations."""
    python = f"Python {platform.python_version()}, {platform.system()} {platform.release()}, {platform.machine()}"
    yield Check(OK, "modserve", f"{__version__}, {python}")
    if own_form == "compiled":
        yield Check(OK, "form", "compiled")
    else:
        text = "interpreted, which takes up to twice the CPU time of the compiled form for each request"
        yield Check(
            WARNING,
            "form",
            text,
            "install modserve where a C compiler is (Debian: gcc libc6-dev), or start it by 'scripts/serve'",
        )
    broken: list[str] = []
    listed: list[str] = []
    for module, distribution in _LIBRARIES.items():
        try:
            import_module(module)
            listed.append(f"{distribution} {version(distribution)}")
        except (ImportError, PackageNotFoundError) as error:
            broken.append(f"{distribution}: {error}")
        except Exception as error:  # protobuf's, of generated code and a library that do not fit
            broken.append(f"{distribution}: {type(error).__name__}: {error}")
    if broken:
        advice = f"{pip_install()} --force-reinstall, and 'pip check'"
        yield Check(PROBLEM, "libraries", "; ".join(broken), advice)
    else:
        yield Check(OK, "libraries", ", ".join(dict.fromkeys(listed)))


_LIBRARIES = {
    "numpy": "numpy",
    "onnxruntime": "onnxruntime",
    "google.protobuf.message": "protobuf",
    "modserve.pb.inference": "protobuf",
    "grpc": "grpcio",
    "pydantic": "pydantic",
}
"""Modules that a server imports, and the distributions that they are in."""


def check_settings(remarks: Sequence[str]) -> Iterator[Check]:
    """Yield remarks on options and variables that have no effect, or are deprecated."""
    for remark in remarks:
        yield _check("settings", remark, "'modserve --help-all' lists all options and variables")


def check_ports(settings: Settings, probe: Callable[[str, int], None] | None = None) -> Iterator[Check]:
    """Check that the ports of these settings can be opened; one of our own servers at them is no problem."""
    probe = probe or _probe
    own: Path | None = None
    addresses = {each.name: each for each in listen_addresses(settings)}
    for name in ("HTTP", "gRPC", "metrics", *(["admin"] if "admin" in addresses else ())):
        listening = addresses.get(name)
        if listening is None:
            served = settings.admin_address and name == "metrics" and settings.allow_metrics
            yield Check(OK, f"{name} port", "none of its own: they are at the admin port" if served else "switched off")
            continue
        kind = "socket" if listening.path else "port"
        try:
            with opening(name, listening.address, listening.port):
                probe(listening.address, listening.port)
        except PortError as error:
            process = None if listening.path else listener(listening.port)
            conflict = listening.path or error.refusals[0].in_use
            if conflict and name in ("HTTP", "admin") and _is_modserve(listening):
                own = process
            elif process is None or process != own:
                text, _, advice = str(error).rpartition("; ")
                yield Check(PROBLEM, f"{name} {kind}", text, advice)
                continue
            yield Check(OK, f"{name} {kind}", f"modserve answers at {listening}")
        else:
            any_port = not listening.path and not listening.port
            yield Check(OK, f"{name} {kind}", "any that is free" if any_port else f"{listening} is free")


def _is_modserve(listening: ListenAddress) -> bool:
    """Return True if an HTTP server there says that it is modserve. With keys, its request ids show it."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listening.address, listening.address)
    place = Address("https" if listening.secure else "http", host, listening.port, socket=listening.path)
    try:
        response = ask(place, "GET", "/v2")
        about = json.loads(response.text)
    except (UnreachableError, ValueError):
        return False
    return bool(response.process) or (isinstance(about, dict) and about.get("name") == "modserve")


def _probe(address: str, port: int) -> None:
    asyncio.run(probe_port(address, port))


def check_cores(root: Path = _CGROUP, there: int | None = None) -> Iterator[Check]:
    """Check the cores available for engines' threads, and whether the system takes time away."""
    there = there or os.cpu_count() or 1
    usable = available_cores(root)
    text = plural(usable, "core") + (
        f" of {there}: the others are not available to this process" if usable < there else ""
    )
    if throttled := _field(root / "cpu.stat", "nr_throttled"):
        text += f"; this container was throttled {count(throttled)} times for using more than its share"
    advice = "a larger CPU limit (--cpus, resources.limits.cpu), or fewer instances and threads"
    yield _check("cores", text, advice if throttled else "")


def _field(file: Path, name: str) -> int:
    try:
        for line in file.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key.rstrip(":") == name:
                return int(value.split()[0])
    except (OSError, ValueError, IndexError):
        pass
    return 0


def check_memory(root: Path = _CGROUP, meminfo: Path = Path("/proc/meminfo")) -> Iterator[Check]:
    """Check the memory limit, and how much is free."""
    limit = read_memory_limit(root, meminfo)
    free = _field(meminfo, "MemAvailable") * 1024
    try:
        free = min(free, int((root / "memory.max").read_text()) - int((root / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    text = f"{size(limit)} allowed, {size(free)} free" if limit else "the system does not say"
    advice = "a larger limit; --request-memory-limit and --model-memory-limit keep a server below one"
    yield _check("memory", text, advice if limit and free < 512 * _MIB else "")


def check_files(limit: int | None = None) -> Iterator[Check]:
    """Check the limit of open files, and thereby of connections."""
    limit = raise_limit() if limit is None else limit
    if limit >= sys.maxsize:
        yield Check(OK, "open files", "no limit")
        return
    text = f"{count(limit)} allowed, which is {count(for_connections(limit, 64))} connections"
    advice = "ulimit -n 65536, or LimitNOFILE= of systemd, or docker's --ulimit"
    yield _check("open files", text, advice if limit < 4096 else "")


def check_shared_memory(directory: Path = Path("/dev/shm")) -> Iterator[Check]:
    """Check the directory of shared-memory regions of clients."""
    try:
        usage = shutil.disk_usage(directory)
    except OSError as error:
        text = f"{directory}: {error.strerror}; clients cannot share memory with the server"
        yield Check(WARNING, "shared memory", text, "only needed for --allow-client-shm; mount a tmpfs there")
        return
    text = f"{directory} has {size(usage.total)}, {size(usage.free)} free"
    advice = "for clients that share memory: docker's --shm-size=1g, or an emptyDir with medium: Memory"
    yield _check("shared memory", text, advice if usage.free <= 64 * _MIB else "")


def check_temporary_files(directory: str = "") -> Iterator[Check]:
    """Check the directory for the temporary files of single-file models and workers."""
    try:
        with tempfile.TemporaryFile(dir=directory or None):
            pass
        place = directory or tempfile.gettempdir()
        free = shutil.disk_usage(place).free
    except OSError as error:
        yield Check(PROBLEM, "temporary files", f"cannot be written: {error}", "TMPDIR names a directory for them")
        return
    yield _check("temporary files", f"{place}, {size(free)} free", "TMPDIR names another" if free < 256 * _MIB else "")


def check_engines(entries: Sequence[BackendEntry] | None = None) -> Iterator[Check]:
    """Check which engines are installed."""
    entries = inventory() if entries is None else entries
    installed = [f"{each.library} {each.version}".strip() for each in entries if each.installed and each.library]
    missing = [each.backend for each in entries if not each.installed]
    if not installed:
        yield Check(PROBLEM, "engines", "none is installed", "'modserve engines' has the pip line of each")
        return
    text = ", ".join(dict.fromkeys(installed))
    yield Check(OK, "engines", text + (f"; not installed: {', '.join(missing)}" if missing else ""))


def check_gpus(devices: Sequence[str] | None = None, has_build: bool | None = None) -> Iterator[Check]:
    """Check NVIDIA's GPUs, and whether the local ONNX Runtime can use them."""
    devices = _gpus() if devices is None else devices
    if not devices:
        yield Check(OK, "GPU", "none: models run on CPU cores")
        return
    has_build = _installed("onnxruntime-gpu") if has_build is None else has_build
    text = ", ".join(devices)
    if not has_build:
        text += "; the installed ONNX Runtime is for CPU cores only"
    yield _check("GPU", text, "" if has_build else pip_install("gpu"))


def _gpus() -> list[str]:
    try:
        import pynvml
    except ImportError:
        return [each.name for each in sorted(Path("/dev").glob("nvidia[0-9]*"))]
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return [
            f"{pynvml.nvmlDeviceGetName(each)}, {size(pynvml.nvmlDeviceGetMemoryInfo(each).total)}" for each in handles
        ]
    except pynvml.NVMLError:
        return []


def _installed(distribution: str) -> bool:
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True


def check_clock(
    now: float | None = None,
    source: Path = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
    cost_ns: float | None = None,
) -> Iterator[Check]:
    """Check that the clock is not earlier than this package, and measure the time of reading it."""
    now = time.time() if now is None else now
    made = Path(__file__).stat().st_mtime
    if now < made - 24 * 3600:
        text = f"it is {time.strftime('%Y-%m-%d', time.gmtime(now))}, before modserve was installed"
        yield Check(WARNING, "clock", text, "set the clock: certificates, logs and caches go by it")
        return
    cost_ns = _clock_cost_ns() if cost_ns is None else cost_ns
    try:
        kind = source.read_text().strip()
    except OSError:
        kind = "unknown source"
    text = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(now))}, a look takes {cost_ns:.0f} ns ({kind})"
    advice = "a faster clock source of the kernel, such as tsc: every request reads the clock"
    yield _check("clock", text, advice if cost_ns > 1000 else "")


def _clock_cost_ns() -> float:
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter_ns()
        for _ in range(1000):
            time.monotonic_ns()
        best = min(best, (time.perf_counter_ns() - begin) / 1000)
    return best


def all_checks(settings: Settings, remarks: Sequence[str]) -> Iterator[Check]:
    """Yield every check, in the order of the report."""
    yield from check_versions()
    yield from check_settings(remarks)
    yield from check_ports(settings)
    for each in (
        check_cores,
        check_memory,
        check_files,
        check_shared_memory,
        check_temporary_files,
        check_engines,
        check_gpus,
        check_clock,
    ):
        yield from each()
