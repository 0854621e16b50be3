"""What is said of the end of a process, and after which time it is started again."""

import signal

import pytest

from modserve.process.child_process import BackOff, ExitStatus, exit_status


def exited(code: int) -> int:
    """The status of a process that has ended with `code`, as wait(2) gives it."""
    return code << 8


@pytest.mark.parametrize("code", [0, 1, 2])
def test_what_another_start_would_not_change(code: int) -> None:
    assert exit_status(exited(code)) == ExitStatus(code, False, f"ended with exit code {code}")


@pytest.mark.parametrize("code", [3, 70, 127, 137, 255])
def test_another_exit_code_is_a_crash(code: int) -> None:
    assert exit_status(exited(code)) == ExitStatus(code, True, f"ended with exit code {code}")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (signal.SIGFPE, "was killed by SIGFPE: native code divided by zero or overflowed"),
        (signal.SIGKILL, "was killed by SIGKILL: it was ended by force, usually by the kernel for lack of memory"),
        (signal.SIGUSR1, "was killed by SIGUSR1"),
        (77, "was killed by signal 77"),
    ],
)
def test_a_signal_is_a_crash(number: int, text: str) -> None:
    assert exit_status(number) == ExitStatus(128 + number, True, text)
    core_dumped = 0x80
    assert exit_status(number | core_dumped) == exit_status(number)


def test_every_crash_in_a_row_is_waited_for_longer() -> None:
    back_off = BackOff()
    assert [back_off.delay(1.0) for _ in range(10)] == [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert all(back_off.delay(1.0) == 60 for _ in range(2000))


def test_after_a_minute_of_health_the_next_crash_is_the_first() -> None:
    back_off = BackOff()
    lives = [1.0, 1.0, 59.9, 60.0, 1.0, 1.0, 3600.0]
    assert [back_off.delay(lived) for lived in lives] == [0, 1, 2, 0, 1, 2, 0]
