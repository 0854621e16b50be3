"""The benchmark that says what a request's CPU is spent on."""

from collections import Counter

import pytest

import stages
from overhead import Load

MODULES = stages.short_names(("frontends.http2.connection", "frontends.http.wire.connection", "scheduling.queue"))
LIBRARY, PYTHON, KERNEL = "/a/modserve_compiled__mypyc.so", "/usr/lib/libpython3.11.so", "[kernel.kallsyms]"


def test_modules_are_known_by_the_ends_of_their_names() -> None:
    assert MODULES["http2___connection"] == "frontends.http2.connection"
    assert MODULES["queue"] == "scheduling.queue"
    assert "connection" not in MODULES, "two modules end like that"


@pytest.mark.parametrize(
    ("frames", "stage"),
    [
        ([("tcp_sendmsg", KERNEL), ("ksys_write", KERNEL), ("CPyDef_queue___A___b", LIBRARY)], "kernel: sending"),
        ([("do_epoll_wait", KERNEL), ("uv_run", "/a/uvloop/loop.so")], "kernel: waiting for events"),
        ([("finish_task_switch", KERNEL)], stages.OTHER_KERNEL),
        ([("PyDict_GetItem", PYTHON), ("CPyDef_queue___LevelQueue___take", LIBRARY)], "queue and batch"),
        ([("CPyPy_http2___connection___Http2Connection___read", LIBRARY)], "HTTP/2 frames, header blocks, windows"),
        ([("CPyDef_wire___connection___HttpConnection___read", LIBRARY)], "HTTP heads, bodies, responses"),
        ([("_PyEval_EvalFrameDefault", PYTHON), ("CPyDef_queue___A___b", LIBRARY)], stages.INTERPRETED),
        ([("Run", "/a/onnxruntime_pybind11_state.so"), ("CPyDef_queue___A___b", LIBRARY)], stages.ENGINE),
        ([("uv__io_poll", "/a/uvloop/loop.so")], stages.EVENT_LOOP),
        ([("malloc", "libc.so.6")], stages.INTERPRETED),
    ],
)
def test_a_sample_belongs_to_one_stage(frames: list[tuple[str, str]], stage: str) -> None:
    assert stages.stage(frames, MODULES) == stage


def test_what_perf_prints_is_read() -> None:
    text = (
        "27524 \n\tffffffff81a8adcd security_socket_recvmsg ([kernel.kallsyms])\n\t 12a325 uv_run (/a b/loop.so)\n\n"
        "27524 \n\t f82ec operator new (int) (/usr/lib/libc.so.6)\n\n"
    )
    assert list(stages.stacks(text)) == [
        [("security_socket_recvmsg", "[kernel.kallsyms]"), ("uv_run", "/a b/loop.so")],
        [("operator new (int)", "/usr/lib/libc.so.6")],
    ]


def test_the_table_divides_the_cpu_of_a_request() -> None:
    load = Load(1, 1, 1, 1, 20.0, 1)
    columns = {"HTTP": (load, Counter({"a": 3, "b": 1})), "gRPC": (load, Counter({"b": 10}))}
    assert stages.table(columns) == [
        "| µs a request | HTTP | gRPC |",
        "|---|---:|---:|",
        "| b | 5.0 | 20.0 |",
        "| a | 15.0 |  |",
        "| **in all** | **20.0** | **20.0** |",
    ]
