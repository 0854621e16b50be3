"""`--server-timing`: each answer says what it has cost."""

import re

from repositories import EXAMPLES
from server_process import serving
from wire import SECONDS, Ask, channel, http_infer, message, stub

COST = re.compile(
    r"queue;dur=\d+\.\d{3}, compute_input;dur=\d+\.\d{3}, compute_infer;dur=\d+\.\d{3}, "
    r'compute_output;dur=\d+\.\d{3}, batch;desc="1"'
)


def test_over_both_protocols() -> None:
    with serving(EXAMPLES, options=["--server-timing=true"]) as server:
        for _ in range(2):  # the second time by the short cut
            assert COST.fullmatch(http_infer(server.http_port, Ask()).headers["Server-Timing"])
        assert "Server-Timing" not in http_infer(server.http_port, Ask(model="nosuch")).headers
        with channel(server.grpc_port) as opened:
            _, call = stub(opened).ModelInfer.with_call(message(Ask()), timeout=SECONDS)
        (cost,) = [value for key, value in call.trailing_metadata() if key == "server-timing"]
        assert COST.fullmatch(cost)
