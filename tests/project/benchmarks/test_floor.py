"""The least that asyncio can do: how the benchmark reads what strace has counted."""

import floor

SUMMARY = """    calls syscall
--------- ----------------
     2000 read
     1990 write
        9 futex
       30 epoll_pwait
--------- ----------------
     4029 total
"""


def test_system_calls_of_a_request() -> None:
    assert floor.read_calls(SUMMARY, 1000) == {"read": 2.0, "write": 1.99, "epoll_pwait": 0.03}
    assert floor.calls_table([("JSON, modserve", {"read": 2.0, "write": 1.99})])[-1] == (
        "| JSON, modserve | read 2.00, write 1.99 |"
    )
