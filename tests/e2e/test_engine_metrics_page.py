"""What an engine counts for itself, on the metrics page of a real server."""

from pathlib import Path

from open_server import OpenServer
from repositories import write_identity
from server_process import ServerProcess, eventually
from wire import Ask, Input, http, http_infer, ints


def page(server: ServerProcess) -> list[str]:
    """The lines about the engine's metrics."""
    text = http(server.metrics_port, "GET", "/metrics").body.decode()
    return [line for line in text.splitlines() if "test_" in line]


def test_they_come_with_the_model_and_go_with_it(tmp_path: Path, open_server: OpenServer) -> None:
    write_identity(tmp_path, "metered", backend="metered", extra="instance_group [ { count: 2 kind: KIND_CPU } ]")
    with open_server.host(tmp_path) as server:
        for rows in (1, 3, 8):
            ask = Ask((Input("INPUT0", "INT32", (rows, 1), ints(*range(rows))),), model="metered")
            assert http_infer(server.http_port, ask).status == 200
        assert page(server) == [
            r"# HELP test_executions Executions\nof all instances",
            "# TYPE test_executions counter",
            r'test_executions{who="a \"test\""} 3.0',
            "# HELP test_rows Rows of executions",
            "# TYPE test_rows histogram",
            'test_rows_bucket{le="1.0"} 1.0',
            'test_rows_bucket{le="4.0"} 2.0',
            'test_rows_bucket{le="+Inf"} 3.0',
            "test_rows_count 3.0",
            "test_rows_sum 12.0",
            "# HELP test_rows_lately Rows of the last execution",
            "# TYPE test_rows_lately gauge",
            "test_rows_lately 8.0",
        ]
        assert http(server.http_port, "POST", "/v2/repository/models/metered/unload").status == 200
        eventually(lambda: page(server) == [])
