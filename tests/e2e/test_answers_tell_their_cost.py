"""`--server-timing`: each answer says what it has cost."""

import json
import re

from repositories import EXAMPLES
from server_process import serving
from wire import SECONDS, Ask, channel, http, http_infer, message, stub

COST = re.compile(
    r"queue;dur=\d+\.\d{3}, compute_input;dur=\d+\.\d{3}, compute_infer;dur=\d+\.\d{3}, "
    r'compute_output;dur=\d+\.\d{3}, batch;desc="(\d)"'
)


def batch_size(cost: str) -> int:
    found = COST.fullmatch(cost)
    assert found is not None, cost
    return int(found[1])


def test_over_every_protocol() -> None:
    with serving(EXAMPLES, options=["--server-timing=true"]) as server:
        for _ in range(2):  # the second time by the short cut
            assert batch_size(http_infer(server.http_port, Ask()).headers["Server-Timing"]) == 1
        assert "Server-Timing" not in http_infer(server.http_port, Ask(model="nosuch")).headers
        for rows, sizes in ((1, {1}), (9, {1, 8})):  # batches of more than 8 are cut up
            body = json.dumps({"instances": [{"INPUT0": [1] * 16, "INPUT1": [2] * 16}] * rows})
            answer = http(server.http_port, "POST", "/v1/models/simple:predict", body.encode())
            assert batch_size(answer.headers["server-timing"]) in sizes
        with channel(server.grpc_port) as opened:
            _, call = stub(opened).ModelInfer.with_call(message(Ask()), timeout=SECONDS)
        (cost,) = [value for key, value in call.trailing_metadata() if key == "server-timing"]
        assert batch_size(cost) == 1
