"""What of the worker needs CPython says so elsewhere, and only when it is used."""

import ctypes

import pytest

from modserve.backends.python.worker import dlpack
from modserve.backends.python.worker.errors import TritonModelException


def test_dlpack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ctypes, "pythonapi")
    monkeypatch.setattr("sys.implementation.name", "pypy")
    function = dlpack._of_cpython("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    with pytest.raises(TritonModelException, match="DLPack needs CPython; this is pypy"):
        function(None, b"dltensor")
