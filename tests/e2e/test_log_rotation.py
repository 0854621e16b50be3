"""The log file is moved away, as logrotate does it, and nobody tells the server."""

from pathlib import Path

import pytest
from repositories import EXAMPLES
from server_process import eventually, serving
from wire import http


@pytest.mark.parametrize("option", ["--supervise", "--workers=2"])
def test_every_process_goes_on_in_a_new_file(tmp_path: Path, option: str) -> None:
    file, old = tmp_path / "log", tmp_path / "log.1"
    options = [option, f"--log-file={file}", "--access-log=all"]
    with serving(EXAMPLES, options=options) as server:
        writers = ["worker 0.access", "worker 1.access"] if option == "--workers=2" else ["modserve.access"]

        def all_wrote() -> bool:
            http(server.http_port, "GET", "/v2/models/simple")
            return file.exists() and all(each in file.read_text() for each in writers)

        eventually(all_wrote)
        file.rename(old)
        eventually(all_wrote)
        size = old.stat().st_size
        eventually(all_wrote)
        assert old.stat().st_size == size
