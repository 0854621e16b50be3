"""Every public method of the four clients of `tritonclient`, and of their tensors, against one real server.

The methods are listed by looking at the classes: one that a new version adds fails here until it has a call.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from client_calls import CALLS, OPTIONS, TENSOR_CALLS
from repositories import EXAMPLES
from server_process import ServerProcess, serving
from test_client_flavours import CLIENTS, MODULES, opened

TENSORS = ["InferInput", "InferRequestedOutput", "InferResult", "InferAsyncRequest"]


def public(kind: type) -> list[str]:
    return [name for name in dir(kind) if not name.startswith("_")]


METHODS = [(flavour, method) for flavour, kind in CLIENTS.items() for method in public(kind)]
TENSOR_METHODS = [
    (flavour, f"{name}.{method}")
    for flavour, module in MODULES.items()
    for name in TENSORS
    if hasattr(module, name)
    for method in public(getattr(module, name))
]


class Watched:
    """A client, and which of its methods were asked for."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.asked: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.asked.add(name)
        return getattr(self._client, name)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    traces = tmp_path_factory.mktemp("traces") / "trace.json"
    with serving(EXAMPLES, options=[*OPTIONS, f"--trace-config=triton,file={traces}"]) as running:
        yield running


@pytest.mark.parametrize(("flavour", "method"), METHODS, ids=["-".join(each) for each in METHODS])
async def test_method(everything: ServerProcess, flavour: str, method: str) -> None:
    assert method in CALLS, f"tritonclient has a method {method!r} that no test calls: give it one in client_calls.py"
    async with opened(flavour, everything) as client:
        watched = Watched(client._client)
        client._client = watched
        await CALLS[method](client, everything)
        assert method in watched.asked


@pytest.mark.parametrize(("flavour", "method"), TENSOR_METHODS, ids=["-".join(each) for each in TENSOR_METHODS])
async def test_tensor_method(everything: ServerProcess, flavour: str, method: str) -> None:
    assert method in TENSOR_CALLS, f"no test calls {method!r}: give it one in client_calls.py"
    async with opened(flavour, everything) as client:
        await TENSOR_CALLS[method](client, everything)


def test_there_is_no_call_of_a_method_that_is_gone() -> None:
    assert {method for _, method in METHODS} == set(CALLS)
    assert {method for _, method in TENSOR_METHODS} == set(TENSOR_CALLS)
