"""Model files for tests, loaded as in a process of several models."""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modserve.backends.python.worker import model
from modserve.backends.python.worker.errors import ModelError
from modserve.backends.python.worker.request import InferenceRequest
from modserve.backends.python.worker.tensor import Tensor

HEAD = "import sys\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\nNONE = np.zeros(0)\n"

Make = Callable[..., model.LoadedModel]


class Handle:
    def __init__(self) -> None:
        self.events: list[Any] = []

    def send(self, response: Any, final: bool) -> None:
        self.events.append(("response", final) if response is not None else ("end", final))

    def is_cancelled(self) -> bool:
        return False

    def is_paused(self) -> bool:
        return False

    def reschedule(self) -> None:
        self.events.append("again")

    def let_go(self) -> None:
        self.events.append("gone")


def loader(tmp_path: Path) -> Make:
    """Loads a model whose class has these methods; `whole` is the whole file."""

    def load(methods: str = "", whole: "str | None" = None, initialize: bool = True) -> model.LoadedModel:
        path = tmp_path / "m" / "1" / "model.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        body = textwrap.indent(textwrap.dedent(methods), "    ")
        path.write_text(whole if whole is not None else f"{HEAD}class TritonPythonModel:\n{body}\n", encoding="utf-8")
        made = model.load(str(path), "m", None, isolated=True)
        if initialize:
            made.initialize({"model_name": "m"})
        return made

    return load


def requests(count: int = 1, handle: "Handle | None" = None, **more: Any) -> "list[InferenceRequest]":
    handle = handle or Handle()
    return [
        InferenceRequest.make_unchecked(handle, [Tensor("I", np.full(2, i, np.float32))], ("O",), **more)
        for i in range(count)
    ]


def refused(call: Callable[[], Any]) -> ModelError:
    with pytest.raises(ModelError) as caught:
        call()
    assert caught.value.__context__ is None  # nothing of the model is kept
    return caught.value


ECHO = """
def execute(self, requests):
    return [
        pb_utils.InferenceResponse([pb_utils.Tensor("O", r.inputs()[0].as_numpy() + 1), pb_utils.Tensor("Q", NONE)])
        for r in requests
    ]
"""
