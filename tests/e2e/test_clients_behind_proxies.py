"""Who called, in all logs: the client's address behind a proxy, its program, its key, and its trace."""

import json
from pathlib import Path

import grpc
import pytest
from repositories import EXAMPLES
from server_process import eventually, serving
from wire import http

from modserve.pb import inference as pb

CLIENT, TRACE = "203.0.113.5", "0af7651916cd43dd8448eb211c80319c"
HEADERS = {
    "X-Forwarded-For": f"198.51.100.1, {CLIENT}",
    "User-Agent": "probe/1.0",
    "traceparent": f"00-{TRACE}-b7ad6b7169203331-01",
    "X-API-Key": "s3cret-of-sixteen-characters",
}
INPUTS = [{"name": f"INPUT{n}", "shape": [1, 16], "datatype": "INT32", "data": [list(range(16))]} for n in (0, 1)]


@pytest.mark.parametrize("trusted", [True, False])
def test_every_log_has_the_client(tmp_path: Path, trusted: bool) -> None:
    file, audit = tmp_path / "log", tmp_path / "audit"
    options = [f"--log-file={file}", "--log-format=json", "--access-log=all", f"--audit-log={audit}"]
    options += ["--trusted-proxy=127.0.0.0/8"] if trusted else []
    keys = {"MODSERVE_API_KEY": HEADERS["X-API-Key"]}
    infer = "/v2/models/simple/infer"
    with serving(EXAMPLES, options=options, environment=keys) as server:
        for inputs in (INPUTS, INPUTS, []):
            http(server.http_port, "POST", infer, json.dumps({"inputs": inputs}).encode(), HEADERS)
        http(server.http_port, "GET", "/v2/models/none", b"", HEADERS)
        http(server.http_port, "POST", "/v2/logging", b'{"log_verbose_level": 0}', HEADERS)
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            call = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                request_serializer=pb.ModelInferRequest.SerializeToString,
                response_deserializer=pb.ModelInferResponse.FromString,
            )
            metadata = tuple((name.lower(), value) for name, value in HEADERS.items() if name != "User-Agent")
            for model in ("simple", "none"):
                with pytest.raises(grpc.RpcError):
                    call(pb.ModelInferRequest(model_name=model), metadata=metadata)

        def lines(logger: str) -> list[dict[str, object]]:
            rows = [json.loads(line) for line in file.read_text().splitlines()]
            return [row for row in rows if row["logger"] == logger]

        eventually(lambda: len(lines("modserve.access")) >= 7 and audit.exists() and audit.read_text().endswith("\n"))
        eventually(lambda: len(lines("modserve.observability.failures")) >= 4)
        access, failed = lines("modserve.access"), lines("modserve.observability.failures")
        changes = [json.loads(line) for line in audit.read_text().splitlines()]
    assert len(access) == 7
    assert len(failed) == 4
    for line in access:
        assert (line["trace_id"], line["caller"], line["place"]) == (TRACE, "MODSERVE_API_KEY", "access")
        assert line["process"] > 1  # type: ignore[operator]
        agent = str(line["user_agent"])
        assert agent == "probe/1.0" if line["protocol"] == "HTTP" else agent.startswith("grpc-python/")
    for line in failed:
        assert (line["trace_id"], bool(line["request_id"])) == (TRACE, True)
    for line in [*access, *failed, *changes]:
        client = str(line["client"])
        assert client == CLIENT if trusted else client.startswith("127.0.0.1:"), line
