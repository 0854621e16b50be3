"""``--audit-log`` with a real server and clients: who has changed what, over both protocols, and SIGHUP."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc
import tritonclient.http
from repositories import EXAMPLES
from server_process import ServerProcess, eventually, serving, started
from test_callers_with_keys import SINGLE, bearer, keys
from tritonclient.utils import InferenceServerException
from wire import HOST, http


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def brief(file: Path) -> list[tuple[Any, ...]]:
    return [
        tuple(line.get(key, "") for key in ("protocol", "tenant", "call", "model", "status")) for line in lines(file)
    ]


def change_over_both(server: ServerProcess, key: str, refused: bool) -> None:
    """Unload and load a model with tritonclient, over HTTP and gRPC."""
    over_http = tritonclient.http.InferenceServerClient(f"{HOST}:{server.http_port}")
    over_grpc = tritonclient.grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}")
    headers = {"authorization": f"Bearer {key}"}
    with over_http, over_grpc:
        for client in (over_http, over_grpc):
            for call in (client.unload_model, client.load_model):
                if refused:
                    with pytest.raises(InferenceServerException):
                        call("simple", headers=dict(headers))
                else:
                    call("simple", headers=dict(headers))


def test_who_has_changed_what(tmp_path: Path) -> None:
    file, audit = tmp_path / "keys.yaml", tmp_path / "audit.log"
    user = keys(file, "add", "user", "--scope", "simple=infer,read", "--tenant", "team-a")
    options = [f"--auth-file={file}", f"--audit-log={audit}", "--model-control-mode=explicit", "--load-model=simple"]
    load, unload = "/v2/repository/models/simple/load", "/v2/repository/models/simple/unload"
    with serving(EXAMPLES, options=options, environment={"MODSERVE_API_KEY": SINGLE}) as server:
        change_over_both(server, SINGLE, refused=False)
        change_over_both(server, user, refused=True)
        change_over_both(server, "not-a-key-of-anybody", refused=True)
        eventually(lambda: len(lines(audit)) == 12)
        os.rename(audit, tmp_path / "old")
        server.signal(signal.SIGHUP)
        eventually(audit.exists)
        with tritonclient.http.InferenceServerClient(f"{HOST}:{server.http_port}") as client:
            client.update_log_settings({"log_verbose_level": 1}, headers=bearer(SINGLE))
    assert brief(tmp_path / "old") == [
        ("HTTP", "default", f"POST {unload}", "simple", 200),
        ("HTTP", "default", f"POST {load}", "simple", 200),
        ("gRPC", "default", "RepositoryModelUnload", "simple", "OK"),
        ("gRPC", "default", "RepositoryModelLoad", "simple", "OK"),
        ("HTTP", "team-a", f"POST {unload}", "simple", 403),
        ("HTTP", "team-a", f"POST {load}", "simple", 403),
        ("gRPC", "team-a", "RepositoryModelUnload", "", "PERMISSION_DENIED"),
        ("gRPC", "team-a", "RepositoryModelLoad", "", "PERMISSION_DENIED"),
        ("HTTP", "", f"POST {unload}", "simple", 401),
        ("HTTP", "", f"POST {load}", "simple", 401),
        ("gRPC", "", "RepositoryModelUnload", "", "UNAUTHENTICATED"),
        ("gRPC", "", "RepositoryModelLoad", "", "UNAUTHENTICATED"),
    ]
    (line,) = lines(audit)
    assert (line["caller"], line["origin"], line["change"]) == ("MODSERVE_API_KEY", "key", {"log_verbose_level": 1})
    assert line["client"].startswith("127.0.0.1:")
    for secret in (SINGLE, user, "not-a-key-of-anybody"):
        assert secret not in audit.read_text() + (tmp_path / "old").read_text()


def test_several_workers_write_whole_lines_into_one_file(tmp_path: Path) -> None:
    audit, calls = tmp_path / "audit.log", 60
    # In the log, each of these letters takes six bytes: a line is longer than the buffer of a file.
    body = json.dumps({"log_verbose_level": 0, "note": "\u00e9" * 900}, ensure_ascii=False).encode()

    def change(number: int) -> int:
        headers = {"X-Request-ID": f"call-{number}"}
        return http(server.http_port, "POST", "/v2/logging", body, headers).status

    with serving(EXAMPLES, options=["--workers=2", f"--audit-log={audit}"]) as server:
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(change, range(calls))) == {200}
        eventually(lambda: len(lines(audit)) == calls)
    written = lines(audit)
    assert {line["request_id"] for line in written} == {f"call-{number}" for number in range(calls)}
    assert {line["worker"] for line in written} == {0, 1}
    assert all(len(json.dumps(line["change"])) > 5400 for line in written)


def test_a_file_that_cannot_be_opened_ends_the_server(tmp_path: Path) -> None:
    with started(EXAMPLES, options=[f"--audit-log={tmp_path / 'none' / 'audit'}"]) as server:
        server.wait(1, errors=["cannot open the audit log; '--audit-log' names another"])
