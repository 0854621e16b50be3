"""What a supervisor does when a child of its ends, and when it is to stop: several workers, or a server alone."""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from modserve.core.configuration.log_settings import LogFormat, LogSettings
from modserve.process.child_process import ExitStatus
from modserve.process.supervisor import IDENTITY, Supervisor, Workers, arguments, main, remove
from modserve.workers.identity import WorkerIdentity

KILLED = ExitStatus(137, True, "was killed by SIGKILL")
DONE = ExitStatus(0, False, "ended with exit code 0")
ENDED_EARLY = ExitStatus(143, True, "was killed by SIGTERM")
FAILED = ExitStatus(1, False, "ended with exit code 1")


class Processes:
    """Stands in for the system: processes by number, and the signals that they got."""

    def __init__(self, tmp_path: Path, count: int = 3, grace_s: float = 30.0, notice_s: float = 0.0) -> None:
        self.identities: list[WorkerIdentity] = []
        self.signals: list[tuple[int, int]] = []
        self.closed: list[list[tuple[int, int]]] = []
        """The signals that were sent before each closing of the shared sockets."""
        self.refusals = 0
        """How many of the next processes the system does not give."""
        workers = Workers(count, grace_s, tmp_path, notice_s)
        self.supervisor = Supervisor(["serve", IDENTITY], workers, self.launch, self.send, self.close)
        self.supervisor.begin(0.0)

    def launch(self, command: Sequence[str]) -> int:
        if self.refusals:
            self.refusals -= 1
            raise BlockingIOError(11, "Resource temporarily unavailable")
        self.identities.append(WorkerIdentity.parse(command[1]))
        return 100 + len(self.identities) - 1

    def send(self, pid: int, number: int) -> None:
        self.signals.append((pid, number))

    def close(self) -> None:
        self.closed.append(list(self.signals))

    def end(self, pid: int, end: ExitStatus, now_s: float) -> None:
        self.supervisor.on_end(pid, end, now_s)
        self.supervisor.turn(now_s)


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    return Processes(tmp_path)


def test_each_worker_knows_its_place(processes: Processes) -> None:
    assert [(identity.index, identity.count, identity.starts) for identity in processes.identities] == [
        (0, 3, 0),
        (1, 3, 0),
        (2, 3, 0),
    ]
    assert processes.identities[1].others == [0, 2]


def test_one_that_crashes_is_started_again_later_and_later(processes: Processes) -> None:
    processes.end(101, KILLED, 5.0)
    assert (processes.identities[-1].index, processes.identities[-1].starts) == (1, 1)
    processes.end(103, KILLED, 6.0)
    assert len(processes.identities) == 4
    assert processes.supervisor.wait_s(6.0) == 1.0
    processes.supervisor.turn(6.9)
    assert len(processes.identities) == 4
    processes.supervisor.turn(7.0)
    assert (processes.identities[-1].index, processes.identities[-1].starts) == (1, 2)
    assert processes.supervisor.wait_s(7.0) is None
    assert not processes.supervisor.over


def test_the_delay_of_one_is_not_that_of_another(processes: Processes) -> None:
    processes.end(100, KILLED, 5.0)
    processes.end(103, KILLED, 6.0)
    processes.end(101, KILLED, 6.0)
    assert [identity.index for identity in processes.identities[3:]] == [0, 1]


def test_one_that_ends_in_order_is_replaced_at_once(processes: Processes) -> None:
    for pid in (100, 103, 104):
        processes.end(pid, DONE, 1.0)
    assert [identity.starts for identity in processes.identities if identity.index == 0] == [0, 1, 2, 3]


def test_one_that_fails_before_it_has_served_ends_all(processes: Processes) -> None:
    processes.end(101, FAILED, 2.0)
    assert processes.signals == [(100, signal.SIGTERM), (102, signal.SIGTERM)]
    processes.end(100, DONE, 3.0)
    assert not processes.supervisor.over
    processes.end(102, DONE, 3.0)
    assert processes.supervisor.over
    assert processes.supervisor.code == 1


def test_one_that_ends_before_it_hears_signals_does_not_hide_the_failure(processes: Processes) -> None:
    processes.end(101, FAILED, 2.0)
    processes.end(100, ENDED_EARLY, 3.0)
    processes.end(102, DONE, 3.0)
    assert processes.supervisor.code == 1


def test_one_that_fails_after_it_has_served_is_started_again(processes: Processes) -> None:
    processes.identities[1].mark(1).touch()
    processes.end(101, FAILED, 2.0)
    assert not processes.supervisor.stopping
    assert processes.identities[-1].index == 1


def test_a_stop_drains_one_after_the_other(processes: Processes) -> None:
    supervisor = processes.supervisor
    supervisor.on_signal(signal.SIGTERM, 10.0)
    assert processes.signals == [(100, signal.SIGTERM)]
    processes.end(100, DONE, 11.0)
    assert processes.signals[1:] == [(101, signal.SIGTERM)]
    processes.end(101, DONE, 12.0)
    assert processes.signals[2:] == [(102, signal.SIGTERM)]
    processes.end(102, DONE, 13.0)
    assert supervisor.over
    assert supervisor.code == 0


def test_the_first_worker_has_the_time_of_the_notice_as_well(tmp_path: Path) -> None:
    """In which it tells the others that they are not ready: so says the file that is there before the signal."""
    processes = Processes(tmp_path, notice_s=5.0)
    supervisor, mark = processes.supervisor, processes.identities[0].stopping
    assert not mark.exists()
    supervisor.on_signal(signal.SIGTERM, 10.0)
    assert mark.exists()
    assert processes.signals == [(100, signal.SIGTERM)]
    assert supervisor.wait_s(10.0) == 15.0
    supervisor.turn(24.9)
    assert processes.signals == [(100, signal.SIGTERM)]
    supervisor.turn(25.0)
    assert processes.signals[1:] == [(101, signal.SIGTERM)]
    supervisor.turn(35.0)
    supervisor.turn(45.4)
    assert processes.signals[2:] == [(102, signal.SIGTERM)]
    supervisor.turn(45.5)
    assert (102, signal.SIGKILL) in processes.signals


def test_a_disk_that_is_full_costs_the_notice_and_no_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    processes = Processes(tmp_path / "gone", notice_s=5.0)
    processes.supervisor.on_signal(signal.SIGTERM, 10.0)
    assert processes.signals == [(100, signal.SIGTERM)]
    assert processes.supervisor.wait_s(10.0) == 10.0
    assert caplog.messages[-1].startswith("the stop begins without its notice of 5 s: cannot write ")
    processes.supervisor.on_signal(signal.SIGTERM, 11.0)
    assert processes.signals[1:] == [(100, signal.SIGTERM), (101, signal.SIGTERM), (102, signal.SIGTERM)]


def test_a_second_signal_ends_the_notice(tmp_path: Path) -> None:
    processes = Processes(tmp_path, notice_s=5.0)
    processes.supervisor.on_signal(signal.SIGTERM, 10.0)
    processes.supervisor.on_signal(signal.SIGTERM, 11.0)
    assert not processes.identities[0].stopping.exists()
    assert processes.signals[1:] == [(100, signal.SIGTERM), (101, signal.SIGTERM), (102, signal.SIGTERM)]


def test_without_a_notice_nobody_is_told(processes: Processes) -> None:
    processes.supervisor.on_signal(signal.SIGTERM, 10.0)
    assert not processes.identities[0].stopping.exists()


def test_a_process_that_the_system_does_not_give_is_asked_for_again(
    processes: Processes, caplog: pytest.LogCaptureFixture
) -> None:
    processes.refusals = 2
    processes.end(101, KILLED, 5.0)
    assert processes.supervisor.wait_s(5.0) == 1.0
    processes.supervisor.turn(6.0)
    assert processes.supervisor.wait_s(6.0) == 2.0
    processes.supervisor.turn(8.0)
    assert (processes.identities[-1].index, processes.identities[-1].starts) == (1, 1)
    assert [record.getMessage() for record in caplog.records if "cannot start" in record.getMessage()] == [
        f"cannot start worker 1: [Errno 11] Resource temporarily unavailable; trying again in {seconds} s"
        for seconds in (1, 2)
    ]


def test_a_stop_while_they_start_is_no_failure(processes: Processes) -> None:
    processes.supervisor.on_signal(signal.SIGTERM, 0.1)
    for pid in (100, 101, 102):
        processes.end(pid, ENDED_EARLY, 0.2)
    assert processes.supervisor.over
    assert processes.supervisor.code == 0


def test_one_that_takes_long_does_not_keep_the_others(processes: Processes) -> None:
    supervisor = processes.supervisor
    supervisor.on_signal(signal.SIGINT, 10.0)
    assert supervisor.wait_s(10.0) == 10.0
    supervisor.turn(20.0)
    supervisor.turn(30.0)
    assert [pid for pid, _ in processes.signals] == [100, 101, 102]
    processes.end(102, DONE, 31.0)
    supervisor.turn(40.5)
    assert (100, signal.SIGKILL) in processes.signals
    assert (102, signal.SIGKILL) not in processes.signals
    for pid in (100, 101):
        processes.end(pid, KILLED, 40.6)
    assert supervisor.over
    assert supervisor.code == 1


def test_one_that_dies_while_the_others_drain_is_not_started_again(processes: Processes) -> None:
    processes.supervisor.on_signal(signal.SIGTERM, 10.0)
    processes.end(101, KILLED, 10.5)
    processes.end(100, DONE, 11.0)
    assert processes.signals == [(100, signal.SIGTERM), (102, signal.SIGTERM)]
    processes.end(102, DONE, 12.0)
    assert processes.supervisor.over
    assert processes.supervisor.code == 137
    assert len(processes.identities) == 3


def test_another_signal_goes_to_all(processes: Processes) -> None:
    processes.supervisor.on_signal(signal.SIGQUIT, 10.0)
    assert processes.signals == [(pid, signal.SIGQUIT) for pid in (100, 101, 102)]
    assert processes.supervisor.stopping


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1])
def test_a_harmless_signal_goes_to_all_and_ends_none(processes: Processes, number: signal.Signals) -> None:
    processes.supervisor.on_signal(number, 10.0)
    assert processes.signals == [(pid, number) for pid in (100, 101, 102)]
    assert not processes.supervisor.stopping
    processes.end(101, KILLED, 11.0)
    assert processes.identities[-1].index == 1


def test_a_second_signal_goes_to_all(processes: Processes) -> None:
    processes.supervisor.on_signal(signal.SIGTERM, 10.0)
    processes.supervisor.on_signal(signal.SIGTERM, 10.1)
    assert processes.signals[1:] == [(pid, signal.SIGTERM) for pid in (100, 101, 102)]
    for pid in (100, 101, 102):
        processes.end(pid, ENDED_EARLY, 10.2)
    assert processes.supervisor.code == 143


def test_a_stop_while_none_runs(tmp_path: Path) -> None:
    processes = Processes(tmp_path, 1)
    processes.end(100, KILLED, 0.1)
    processes.end(101, KILLED, 0.2)
    processes.supervisor.on_signal(signal.SIGTERM, 0.3)
    assert processes.supervisor.over


def test_orphans_are_nobody(processes: Processes) -> None:
    processes.end(999, KILLED, 1.0)
    assert len(processes.identities) == 3


def test_the_directory_goes_with_all_that_is_in_it(tmp_path: Path) -> None:
    directory = tmp_path / "workers"
    directory.mkdir()
    (directory / "lock").touch()
    remove(directory)
    assert not directory.exists()
    remove(directory)


class Alone:
    """A server alone, as the first of its processes, with the number 100."""

    def __init__(self) -> None:
        self.commands: list[Sequence[str]] = []
        self.signals: list[tuple[int, int]] = []
        self.supervisor = Supervisor(
            ["serve"], None, self.launch, lambda pid, number: self.signals.append((pid, number))
        )
        self.supervisor.begin(0.0)

    def launch(self, command: Sequence[str]) -> int:
        self.commands.append(command)
        return 99 + len(self.commands)


@pytest.mark.parametrize("end", [DONE, FAILED, ExitStatus(2, False, "ended with exit code 2")])
def test_the_end_of_a_server_alone_that_has_not_crashed_is_the_end(end: ExitStatus) -> None:
    alone = Alone()
    alone.supervisor.on_end(100, end, 5.0)
    assert (alone.supervisor.over, alone.supervisor.code) == (True, end.code)


def test_a_server_alone_that_crashes_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    alone = Alone()
    for pid in (100, 101):
        alone.supervisor.on_end(pid, KILLED, 5.0)
        alone.supervisor.turn(5.0)
    assert (alone.commands, alone.supervisor.wait_s(5.0)) == ([["serve"]] * 2, 1.0)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
        "the server, process 100, was killed by SIGKILL; starting it again at once",
        "the server, process 101, was killed by SIGKILL; starting it again in 1 s",
    ]


def test_a_server_alone_gets_every_signal_and_has_the_time_that_it_takes() -> None:
    alone = Alone()
    for number in (signal.SIGINT, signal.SIGTERM):
        alone.supervisor.on_signal(number, 10.0)
    assert alone.signals == [(100, signal.SIGINT), (100, signal.SIGTERM)]
    assert alone.supervisor.wait_s(10.0) is None
    alone.supervisor.on_end(100, ENDED_EARLY, 10_000.0)
    assert (alone.supervisor.over, alone.supervisor.code) == (True, 143)


def test_a_server_alone_that_is_not_started_again_ends_with_the_code_of_its_crash() -> None:
    alone = Alone()
    for pid in (100, 101):
        alone.supervisor.on_end(pid, KILLED, 5.0)
        alone.supervisor.turn(5.0)
    alone.supervisor.on_signal(signal.SIGTERM, 5.5)
    assert (alone.supervisor.over, alone.supervisor.code) == (True, 137)


def test_a_log_file_that_cannot_be_opened_starts_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["supervisor", "ISO8601", str(tmp_path), "0", "", "", "", "", "nothing"])
    assert main() == 1
    assert capsys.readouterr().err.startswith("modserve: cannot open the log file; '--log-file' names another: ")


def test_the_command_line_of_the_supervisor() -> None:
    settings = LogSettings(format=LogFormat.DEFAULT, file="a b")
    begin = ["-m", "modserve.process.supervisor", "default", "a b"]
    assert arguments(settings, ["x", "--y"]) == [*begin, "0", "", "", "", "", "x", "--y"]
    workers = Workers(3, 30.0, Path("/d"), 10.0)
    assert arguments(settings, ["x"], workers, (5, 6)) == [*begin, "3", "30.0", "10.0", "/d", "5,6", "x"]


def test_shared_sockets_stay_open_until_the_last_worker_drains(processes: Processes) -> None:
    processes.supervisor.on_signal(signal.SIGTERM, 1.0)
    processes.end(100, DONE, 2.0)
    assert processes.closed == []
    processes.end(101, DONE, 3.0)
    assert processes.closed == [[(100, signal.SIGTERM), (101, signal.SIGTERM)]]
    assert processes.signals[-1] == (102, signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGTERM])
def test_shared_sockets_close_at_once_when_all_end_at_once(processes: Processes, number: signal.Signals) -> None:
    if number is signal.SIGTERM:
        processes.supervisor.on_signal(number, 1.0)
    processes.supervisor.on_signal(number, 1.0)
    assert len(processes.closed) == 1
