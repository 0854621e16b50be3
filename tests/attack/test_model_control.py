"""What those who may load models can ask for, and what clients are told while models load."""

import json
from pathlib import Path
from typing import Final

import grpc
import pytest
from repositories import EXAMPLES, HELD, write_held
from server_here import serving_here, started_here
from server_process import LOADED, ServerProcess
from wire import Ask, Input, channel, http, http_infer, message, stub

from attack.measuring import Limits, attacked
from attack.sending import GOOD, INFER, assert_answers, exchange, post, statuses

LOAD: Final = "/v2/repository/models/simple/load"

_SMALL_LOG = Limits(peak_mb=64, cpu_seconds=4, log_bytes=16 * 1024)


def overridden(**fields: object) -> str:
    config = {"backend": "onnxruntime", "max_batch_size": 8, **fields}
    return json.dumps({"parameters": {"config": json.dumps(config)}})


def filed(path: str) -> str:
    return json.dumps({"parameters": {"config": "{}", f"file:{path}": "QUJD"}})


REFUSED: Final = {
    "20,000 instances": overridden(instance_group=[{"count": 20_000, "kind": "KIND_CPU"}]),
    "20,000 instances in groups": overridden(instance_group=[{"count": 10, "kind": "KIND_CPU"}] * 2_000),
    "2^31-1 instances": overridden(instance_group=[{"count": 2**31 - 1, "kind": "KIND_CPU"}]),
    "a deep path": filed("a/" * 2_000 + "a"),
    "a very deep path": filed("a/" * 100_000 + "a"),
    "a long name": filed("1/" + "a" * 300),
    "a long path": filed("1/" + "/".join(["a" * 200] * 40)),
    "a path up": filed("../../x"),
    "an absolute path": filed("/tmp/x"),
    "a NUL": filed("1/a\0b"),
    "a path that is a directory": filed("1/"),
    "2,000 files": json.dumps({"parameters": {"config": "{}", **{f"file:1/{n}": "QQ==" for n in range(2_000)}}}),
    "a lone surrogate": json.dumps({"parameters": {"config": "{}", "file:1/\ud800": "QQ=="}}),
    "no base64": json.dumps({"parameters": {"config": "{}", "file:1/model.onnx": "%%%"}}),
    "a deep configuration": json.dumps({"parameters": {"config": '{"a":' * 5_000 + "1" + "}" * 5_000}}),
    "a configuration that is no object": json.dumps({"parameters": {"config": "[" * 100_000}}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_loads(server: ServerProcess, name: str) -> None:
    with attacked(server, f"load: {name}", _SMALL_LOG):
        answer = post(server, LOAD, REFUSED[name].encode())
        assert answer.status == 400, answer.body[:500]
        assert len(answer.body) <= 6 * 1024
    assert_answers(server)


def test_inferences_while_a_model_loads(tmp_path: Path) -> None:
    """Not 404, which clients take for final."""
    gate = write_held(tmp_path, "late", loads=False)
    ask = Ask((Input("INPUT0", "INT32", (1, 1), bytes(4)),), model="late")
    with started_here(tmp_path, environment=HELD) as server:
        assert http_infer(server.http_port, ask).status == 503
        with channel(server.grpc_port) as opened:
            with pytest.raises(grpc.RpcError) as raised:
                stub(opened).ModelInfer(message(ask), timeout=10)
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        assert http(server.http_port, "GET", "/v2/models/late").status == 503
        gate.let_load()
        server.wait_for(LOADED)
        gate.open()
        assert http_infer(server.http_port, ask).status == 200
        assert http_infer(server.http_port, Ask(model="nosuch")).status == 404
        server.stop()


RESTRICTED: Final = "--http-restricted-api=inference,model-repository:key=secret"


@pytest.mark.parametrize(("path", "body"), [(INFER, GOOD), ("/v2/repository/index", b"{}")], ids=["infer", "index"])
def test_a_key_in_a_trailer_opens_nothing(path: str, body: bytes) -> None:
    """A proxy that strips or checks the header sees none (RFC 9110, 6.5.1)."""

    def answered(port: int, header: bytes, trailer: bytes) -> list[int]:
        head = b"POST %b HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n" % path.encode()
        chunks = b"%x\r\n%b\r\n0\r\n" % (len(body), body)
        return statuses(exchange(port, head + header + b"\r\n" + chunks + trailer + b"\r\n"))

    with serving_here(EXAMPLES, options=[RESTRICTED]) as server:
        shut = answered(server.http_port, b"", b"")
        assert shut == [403]
        assert answered(server.http_port, b"", b"key: secret\r\n") in (shut, [400])
        assert answered(server.http_port, b"key: secret\r\n", b"") == [200]
