"""The repeat backend says what configuration it wants; what it answers is tested with the library."""

import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from modserve.backends.api import ModelSource
from modserve.backends.repeat import RepeatBackend, RepeatInstance
from modserve.core.configuration.model_config import TensorSpec
from modserve.core.errors import ModserveError
from modserve.core.tensors import dtypes
from modserve.testing import config, instance_spec

IN, DELAY = TensorSpec("IN", dtypes.FP32, (-1,)), TensorSpec("DELAY", dtypes.UINT32, (-1,))
WAIT, OUT = TensorSpec("WAIT", dtypes.UINT32, (1,)), TensorSpec("OUT", dtypes.FP32, (1,))
GOOD: dict[str, Any] = {"inputs": (IN, DELAY, WAIT), "outputs": (OUT,), "decoupled": True, "max_batch_size": 0}


def make(**changes: Any) -> None:
    given = config(**{**GOOD, **changes})
    RepeatBackend().open(ModelSource(given, 1, Path(), Path())).instance(instance_spec(given)).close()


def test_a_good_configuration() -> None:
    make()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"decoupled": False}, "set model_transaction_policy { decoupled: true }"),
        ({"max_batch_size": 4}, "does not support batching, set max_batch_size to 0"),
        ({"inputs": (IN, DELAY)}, "needs WAIT"),
        ({"inputs": (IN, DELAY, WAIT, OUT)}, "has no input 'OUT', only"),
        ({"inputs": (IN, TensorSpec("DELAY", dtypes.INT32, (-1,)), WAIT)}, "input 'DELAY' must be TYPE_UINT32"),
        ({"outputs": (TensorSpec("OUT", dtypes.INT32, (1,)),)}, "IN and OUT must be of the same data type"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_configuration(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ModserveError) as caught:
        make(**changes)
    assert text in caught.value.message


def test_no_time_to_wait() -> None:
    tensors = {"IN": np.zeros(0, np.float32), "DELAY": np.zeros(0, np.uint32), "WAIT": np.zeros(0, np.uint32)}
    request, ended = Mock(inputs=tensors, cancelled=False), threading.Event()
    request.complete = ended.set
    RepeatInstance().execute_requests([request])
    assert ended.wait(30)
    request.fail.assert_not_called()
