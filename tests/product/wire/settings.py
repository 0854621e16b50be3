"""How the servers under test are started, and what follows from it for each response and for each path."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from product.wire import models

REPORT, ASKED_FORMAT = "endpoint-load-metrics", "endpoint-load-metrics-format"
TRAILER = f"{REPORT}-bin"
_PREDICT, _REDIRECT = "/vertex", "X-Vertex-Ai-Triton-Redirect"


@dataclass(frozen=True)
class Setting:
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    platform: str = ""
    orca: str = "off"
    workers: int = 1

    def place(self, path: str, *, use: bool, default: bool = False) -> tuple[str, dict[str, str]]:
        """Where a request for `path` goes, and the headers it needs: to the platform's path if there is one to `use`.

        `default`: the model is the one that takes predictions.
        """
        if use and self.platform == "vertex":
            return _PREDICT, {} if default else {_REDIRECT: path.removeprefix("/")}
        if use and self.platform == "sagemaker" and path.endswith("/infer") and "/versions/" not in path:
            return "/invocations" if default else path.removeprefix("/v2").removesuffix("infer") + "invoke", {}
        return path, {}

    def report_headers(self, number: int) -> dict[str, str]:
        """Those of a request: every second one asks for a report."""
        return {ASKED_FORMAT: "json"} if number % 2 else {}

    def wrong_reports(self, number: int, values: list[str]) -> str:
        """What is wrong with the reports in the headers of a response over HTTP, if anything is."""
        form = {"off": "", "request": "JSON {" if number % 2 else "", "text": "TEXT "}[self.orca]
        good = not values if not form else len(values) == 1 and values[0].startswith(form)
        return "" if good else f"with --orca={self.orca}, load reports are {values}"

    def wrong_trailers(self, reports: list[int], status: str) -> str:
        """The same of a call over gRPC, by how many its head and its trailers have; without a status it was cut."""
        expected = [0, 1] if self.orca == "text" and status else [0, 0]
        return "" if reports == expected else f"load reports in head and trailers: {reports}"


SETTINGS: Mapping[str, Setting] = {
    "memory limit": Setting(
        (
            f"--model-memory-limit={models.MEMORY_LIMIT}",
            "--load-lazily=false",
            "--platform=sagemaker",
            "--allow-grpc=true",
            "--allow-metrics=true",
            "--orca=text",
        ),
        {"SAGEMAKER_MULTI_MODEL": "true", "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": models.PLAIN},
        "sagemaker",
        "text",
    ),
    "no limit": Setting(
        (
            "--platform=vertex",
            "--allow-grpc=true",
            f"--vertex-ai-default-model={models.PLAIN}",
            "--orca=request",
            "--shutdown-delay-secs=1",
        ),
        {"AIP_HEALTH_ROUTE": "/ping", "AIP_PREDICT_ROUTE": _PREDICT},
        "vertex",
        "request",
    ),
    "two workers": Setting(("--workers=2", "--rate-limit=off"), workers=2),
}
"""A model that may leave memory is never changed in place, so that both are needed."""
