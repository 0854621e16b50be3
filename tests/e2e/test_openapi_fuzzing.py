"""Every call in the OpenAPI document, with requests that follow it and requests that do not."""

import importlib
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from minilm_folder import minilm, ranker
from repositories import EXAMPLES, write_identity
from server_process import ServerProcess, serving
from wire import SECONDS, assert_serving, http

schemathesis: Any = importlib.import_module("schemathesis")
checks: Any = importlib.import_module("schemathesis.specs.openapi.checks")
CHECKS = [checks.status_code_conformance, checks.response_schema_conformance]

DRAIN = "/v2/health/drain"
EXAMPLES_A_CALL = 12
MODELS = ("simple", "repeat", "fuzzed", "nosuch")
"""Made-up names would seldom be those of models."""
NOT_NOW = {501, 503}
"""What errors' codes may answer to any call: not supported, or not in this state. 500 is for nobody's requests."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    write_identity(repository, "fuzzed", "FP32")
    texts = [f"minilm={minilm()}", f"ranker={ranker()}"]  # each the only model for its calls of texts
    options = ["--model-control-mode=explicit", "--load-model=*", *texts]
    with serving(EXAMPLES, repository, options=options) as running:
        yield running


def test_every_call(server: ServerProcess) -> None:
    schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{server.http_port}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) > 40
    seen: dict[str, set[int]] = {}
    wrong: list[str] = []

    def send(case: Any, names: random.Random) -> None:
        for parameter, value in (("model", names.choice(MODELS)), ("version", names.choice((1, 1, 9)))):
            if parameter in (case.path_parameters or {}) and names.random() < 0.9:
                case.path_parameters[parameter] = value
        # Drained, the server would refuse the rest; so it is told that this call comes from elsewhere.
        headers = {"Via": "1.1 another"} if case.operation.path == DRAIN else {}
        response = case.call(timeout=SECONDS, headers=headers)
        status = response.status_code
        seen.setdefault(case.operation.label, set()).add(status)
        if problem := _problem(response) or _departure(case, response):
            wrong.append(f"{case.operation.label}: {status} {problem}: {case.as_curl_command()}")

    for mode in schemathesis.GenerationMode:
        for operation in operations:
            if mode is schemathesis.GenerationMode.NEGATIVE and not list(operation.body):
                continue  # nothing in it could be wrong
            strategy = operation.as_strategy(generation_mode=mode)

            @given(strategy, st.randoms(use_true_random=False))
            @settings(
                max_examples=EXAMPLES_A_CALL // 2,
                derandomize=True,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            def run(case: Any, names: random.Random) -> None:
                send(case, names)

            run()
    assert len(seen) == len(operations)
    assert not wrong, "\n".join(wrong[:20])
    assert http(server.http_port, "POST", "/v2/repository/models/simple/load").status == 200
    assert_serving(server)


def _departure(case: Any, response: Any) -> str:
    """How an answer differs from what the document says of it, if it does."""
    try:
        case.validate_response(response, checks=CHECKS)
    except schemathesis.errors.FailureGroup as failures:
        return "; ".join(f"{each.title}: {each.message}" for each in failures.exceptions)
    return ""


def _problem(response: Any) -> str:
    """What is wrong with an answer, if anything."""
    status = response.status_code
    if status >= 500 and status not in NOT_NOW:
        return f"blames the server: {response.text[:300]}"
    if status >= 400 and response.request.method != "HEAD":
        try:
            body = json.loads(response.content)
        except ValueError:
            return f"no JSON: {response.content[:300]!r}"
        if set(body) - {"error_type"} != {"error"} and "reasons" not in body and "model_version_status" not in body:
            return f"no error in {body}"
    return ""
