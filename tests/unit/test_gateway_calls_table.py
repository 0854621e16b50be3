"""The table of calls that a gateway may send again: complete, and as the documentation has it."""

import gateway_calls
import pytest

from modserve.access.calls import RPC_NEEDS


@pytest.mark.parametrize("template", sorted(gateway_calls.PATHS))
def test_each_path_has_one_row_for_each_method(template: str) -> None:
    for method in ("GET", "POST"):
        assert len(gateway_calls.rows_of_path(method, template)) == 1, f"ROWS of scripts/gateway_calls.py, {method}"


@pytest.mark.parametrize("name", sorted(RPC_NEEDS))
def test_each_rpc_has_one_row(name: str) -> None:
    assert len(gateway_calls.rows_of_rpc(name)) == 1, "ROWS of scripts/gateway_calls.py"


def test_what_changes_a_server_is_never_sent_again() -> None:
    changing = {name for name, need in RPC_NEEDS.items() if need.kind in ("control", "admin")}
    reads = {"RepositoryIndex", "SystemSharedMemoryStatus", "CudaSharedMemoryStatus"}
    assert {name for name in RPC_NEEDS if gateway_calls.rows_of_rpc(name)[0].tries == 0} == changing - reads
    for template, need in gateway_calls.PATHS.items():
        (row,) = gateway_calls.rows_of_path("POST", template)
        if need.of("POST").kind in ("control", "admin") and not template.endswith(("/status", "/failures", "/stacks")):
            assert row.tries == 0, template


def test_the_page_has_the_table() -> None:
    assert gateway_calls.table() in gateway_calls.PAGE.read_text(), "python scripts/gateway_calls.py --write"
