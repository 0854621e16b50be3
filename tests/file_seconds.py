"""Seconds of each file of tests: a plugin of pytest that measures them, and compares them with tests/seconds.tsv.

CPU seconds are those of the test process and of the processes it has waited for. The load of the machine hardly changes
them, so they tell when a file has become slower. The time that passes tells which file should start first. A fixture
that several files share counts for the file at which it begins, and a process for the file at which it ends.

`scripts/test --seconds` writes the ledger. Files that take less than a second have no row.
"""

import fcntl
import os
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

GROWTH, LEAST_S = 1.3, 2.0
"""A file is listed as slower if it takes so many times the CPU seconds of the ledger, and so many seconds more."""
_HEAD = "file\tsuite\tCPU seconds\tseconds\n"
_PROPERTY = "seconds"
_began = pytest.StashKey["Seconds"]()
_measured: dict[str, "Seconds"] = {}


class Seconds(NamedTuple):
    """CPU time, and time that passed."""

    cpu: float
    elapsed: float

    def plus(self, other: "Seconds") -> "Seconds":
        return Seconds(self.cpu + other.cpu, self.elapsed + other.elapsed)


def now() -> Seconds:
    *cpu, elapsed = os.times()
    return Seconds(sum(cpu), elapsed)


def parse(text: str) -> dict[str, Seconds]:
    """The rows of a ledger, by file."""
    rows = (line.split("\t") for line in text.removeprefix(_HEAD).splitlines())
    return {file: Seconds(float(cpu), float(elapsed)) for file, _suite, cpu, elapsed in rows}


def write(measured: Mapping[str, Seconds], ledger: Path) -> None:
    """Replace the rows of the files that were measured, and drop those of files that are gone. Runs take turns."""
    with open(ledger, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        rows = {**parse(file.read()), **measured}
        file.truncate(0)
        file.write(_HEAD)
        for name in sorted(rows):
            cpu, elapsed = rows[name]
            if max(cpu, elapsed) >= 1.0 and (ledger.parents[1] / name).exists():
                file.write(f"{name}\t{name.split('/')[1]}\t{cpu:.1f}\t{elapsed:.1f}\n")


def slower(measured: Mapping[str, Seconds], before: Mapping[str, Seconds]) -> list[str]:
    """A line for each file that takes clearly more CPU time than before; the one that has grown most comes first."""
    nothing = Seconds(0.0, 0.0)
    growth = {name: (before.get(name, nothing).cpu, seconds.cpu) for name, seconds in measured.items()}
    names = [name for name, (old, new) in growth.items() if new >= old * GROWTH and new - old >= LEAST_S]
    names.sort(key=lambda name: growth[name][0] - growth[name][1])
    return [f"{growth[name][0]:6.1f} s -> {growth[name][1]:6.1f} s  {name}" for name in names]


def longest_first(items: list[pytest.Item], config: pytest.Config) -> None:
    """Sort tests by the time of their files: of several processes, none is left with a long file in the end."""
    times = {name: -seconds.elapsed for name, seconds in parse(_ledger(config).read_text()).items()}
    items.sort(key=lambda item: times.get(_file(item.nodeid), 0.0))


def _ledger(config: pytest.Config) -> Path:
    return config.rootpath / "tests" / "seconds.tsv"


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-seconds", action="store_true", help="write the files' seconds to tests/seconds.tsv")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_began] = now()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let the report of the teardown, the last of a test, carry the seconds to the process that shows the summary."""
    report = yield
    if call.when == "teardown":
        began, ended = item.stash[_began], now()
        spent = (ended.cpu - began.cpu, ended.elapsed - began.elapsed)
        report.user_properties = [*report.user_properties, (_PROPERTY, spent)]
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, value in report.user_properties:
        if report.when == "teardown" and name == _PROPERTY and isinstance(value, tuple | list):
            file = _file(report.nodeid)
            _measured[file] = _measured.get(file, Seconds(0.0, 0.0)).plus(Seconds(*value))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if lines := slower(_measured, parse(_ledger(config).read_text())):
        terminalreporter.section("CPU seconds of files that have become slower")
        for line in lines:
            terminalreporter.write_line(line)
    if config.getoption("write_seconds"):
        write(_measured, _ledger(config))
