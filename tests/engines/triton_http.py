"""tritonclient over HTTP."""

from typing import Any

import tritonclient.http
from server_process import ServerProcess
from wire import HOST


def connected(server: ServerProcess) -> Any:
    return tritonclient.http.InferenceServerClient(f"{HOST}:{server.http_port}")
