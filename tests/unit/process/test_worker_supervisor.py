"""What the supervisor of several workers does when one of them ends, and when it is to stop."""

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from modserve.process.supervisor import Ending
from modserve.process.worker_supervisor import PLACE, Fleet, Plan, remove
from modserve.workers.identity import WorkerIdentity

KILLED = Ending(137, True, "was killed by SIGKILL")
DONE = Ending(0, False, "ended with exit code 0")
ENDED_EARLY = Ending(143, True, "was killed by SIGTERM")
FAILED = Ending(1, False, "ended with exit code 1")


class Processes:
    """Stands in for the system: processes by number, and the signals that they got."""

    def __init__(self, tmp_path: Path, count: int = 3, grace_s: float = 30.0) -> None:
        self.places: list[WorkerIdentity] = []
        self.signals: list[tuple[int, int]] = []
        self.fleet = Fleet(Plan(count, grace_s, tmp_path, ["serve", PLACE]), self.launch, self.send)
        self.fleet.begin(0.0)

    def launch(self, command: Sequence[str]) -> int:
        self.places.append(WorkerIdentity.parse(command[1]))
        return 100 + len(self.places) - 1

    def send(self, pid: int, number: int) -> None:
        self.signals.append((pid, number))

    def end(self, pid: int, end: Ending, now_s: float) -> None:
        self.fleet.ended(pid, end, now_s)
        self.fleet.turn(now_s)


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    return Processes(tmp_path)


def test_each_worker_knows_its_place(processes: Processes) -> None:
    assert [(place.index, place.count, place.starts) for place in processes.places] == [(0, 3, 0), (1, 3, 0), (2, 3, 0)]
    assert processes.places[1].others == [0, 2]


def test_one_that_crashes_is_started_again_later_and_later(processes: Processes) -> None:
    processes.end(101, KILLED, 5.0)
    assert (processes.places[-1].index, processes.places[-1].starts) == (1, 1)
    processes.end(103, KILLED, 6.0)
    assert len(processes.places) == 4
    assert processes.fleet.wait_s(6.0) == 1.0
    processes.fleet.turn(6.9)
    assert len(processes.places) == 4
    processes.fleet.turn(7.0)
    assert (processes.places[-1].index, processes.places[-1].starts) == (1, 2)
    assert processes.fleet.wait_s(7.0) is None
    assert not processes.fleet.over


def test_the_delay_of_one_is_not_that_of_another(processes: Processes) -> None:
    processes.end(100, KILLED, 5.0)
    processes.end(103, KILLED, 6.0)
    processes.end(101, KILLED, 6.0)
    assert [place.index for place in processes.places[3:]] == [0, 1]


def test_one_that_ends_in_order_is_replaced_at_once(processes: Processes) -> None:
    for pid in (100, 103, 104):
        processes.end(pid, DONE, 1.0)
    assert [place.starts for place in processes.places if place.index == 0] == [0, 1, 2, 3]


def test_one_that_fails_before_it_has_served_ends_all(processes: Processes) -> None:
    processes.end(101, FAILED, 2.0)
    assert processes.signals == [(100, signal.SIGTERM), (102, signal.SIGTERM)]
    processes.end(100, DONE, 3.0)
    assert not processes.fleet.over
    processes.end(102, DONE, 3.0)
    assert processes.fleet.over
    assert processes.fleet.code == 1


def test_one_that_ends_before_it_hears_signals_does_not_hide_the_failure(processes: Processes) -> None:
    processes.end(101, FAILED, 2.0)
    processes.end(100, ENDED_EARLY, 3.0)
    processes.end(102, DONE, 3.0)
    assert processes.fleet.code == 1


def test_one_that_fails_after_it_has_served_is_started_again(processes: Processes) -> None:
    processes.places[1].mark(1).touch()
    processes.end(101, FAILED, 2.0)
    assert not processes.fleet.stopping
    assert processes.places[-1].index == 1


def test_a_stop_drains_one_after_the_other(processes: Processes) -> None:
    fleet = processes.fleet
    fleet.signalled(signal.SIGTERM, 10.0)
    assert processes.signals == [(100, signal.SIGTERM)]
    processes.end(100, DONE, 11.0)
    assert processes.signals[1:] == [(101, signal.SIGTERM)]
    processes.end(101, DONE, 12.0)
    assert processes.signals[2:] == [(102, signal.SIGTERM)]
    processes.end(102, DONE, 13.0)
    assert fleet.over
    assert fleet.code == 0


def test_a_stop_while_they_start_is_no_failure(processes: Processes) -> None:
    processes.fleet.signalled(signal.SIGTERM, 0.1)
    for pid in (100, 101, 102):
        processes.end(pid, ENDED_EARLY, 0.2)
    assert processes.fleet.over
    assert processes.fleet.code == 0


def test_one_that_takes_long_does_not_keep_the_others(processes: Processes) -> None:
    fleet = processes.fleet
    fleet.signalled(signal.SIGINT, 10.0)
    assert fleet.wait_s(10.0) == 10.0
    fleet.turn(20.0)
    fleet.turn(30.0)
    assert [pid for pid, _ in processes.signals] == [100, 101, 102]
    processes.end(102, DONE, 31.0)
    fleet.turn(40.5)
    assert (100, signal.SIGKILL) in processes.signals
    assert (102, signal.SIGKILL) not in processes.signals
    for pid in (100, 101):
        processes.end(pid, KILLED, 40.6)
    assert fleet.over
    assert fleet.code == 1


def test_one_that_dies_while_the_others_drain_is_not_started_again(processes: Processes) -> None:
    processes.fleet.signalled(signal.SIGTERM, 10.0)
    processes.end(101, KILLED, 10.5)
    processes.end(100, DONE, 11.0)
    assert processes.signals == [(100, signal.SIGTERM), (102, signal.SIGTERM)]
    processes.end(102, DONE, 12.0)
    assert processes.fleet.over
    assert processes.fleet.code == 137
    assert len(processes.places) == 3


def test_another_signal_goes_to_all(processes: Processes) -> None:
    processes.fleet.signalled(signal.SIGQUIT, 10.0)
    assert processes.signals == [(pid, signal.SIGQUIT) for pid in (100, 101, 102)]
    assert processes.fleet.stopping


def test_a_hang_up_goes_to_all_and_ends_none(processes: Processes) -> None:
    processes.fleet.signalled(signal.SIGHUP, 10.0)
    assert processes.signals == [(pid, signal.SIGHUP) for pid in (100, 101, 102)]
    assert not processes.fleet.stopping
    processes.end(101, KILLED, 11.0)
    assert processes.places[-1].index == 1


def test_a_second_signal_goes_to_all(processes: Processes) -> None:
    processes.fleet.signalled(signal.SIGTERM, 10.0)
    processes.fleet.signalled(signal.SIGTERM, 10.1)
    assert processes.signals[1:] == [(pid, signal.SIGTERM) for pid in (100, 101, 102)]
    for pid in (100, 101, 102):
        processes.end(pid, ENDED_EARLY, 10.2)
    assert processes.fleet.code == 143


def test_a_stop_while_none_runs(tmp_path: Path) -> None:
    processes = Processes(tmp_path, 1)
    processes.end(100, KILLED, 0.1)
    processes.end(101, KILLED, 0.2)
    processes.fleet.signalled(signal.SIGTERM, 0.3)
    assert processes.fleet.over


def test_orphans_are_nobody(processes: Processes) -> None:
    processes.end(999, KILLED, 1.0)
    assert len(processes.places) == 3


def test_the_directory_goes_with_all_that_is_in_it(tmp_path: Path) -> None:
    directory = tmp_path / "workers"
    directory.mkdir()
    (directory / "lock").touch()
    remove(directory)
    assert not directory.exists()
    remove(directory)
