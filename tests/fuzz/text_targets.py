"""Fuzzes texts of models and file systems: from each entrance to each place where a text leaves the server.

The first byte says how the rest becomes a text, so that lone surrogates come both from bytes and by themselves.
"""

import json
import logging
import os
import tempfile
from pathlib import Path

import orjson

from modserve.backends.python.worker.errors import TritonError
from modserve.core.configuration.log_settings import LogFormat
from modserve.core.errors import Code, ModserveError, from_exception
from modserve.core.lifecycle import IndexEntry, LifecycleState
from modserve.core.statistics.metrics import MetricStore
from modserve.frontends.grpc.heads import message_text
from modserve.observability.failures import RecentFailures
from modserve.observability.logging import formatter
from modserve.process.console import models_table
from modserve.protocol import failures
from modserve.protocol.control import repository
from modserve.protocol.grpc import response_writer
from modserve.protocol.http import infer_response
from modserve.repository.local import LocalRepository
from modserve.repository.overrides import check_model_name

_MOST = 200_000
"""Characters of a text: longer ones would only take time."""


def foreign_text(data: bytes) -> None:
    """A text of a model, and the name of a folder."""
    text = _text(data)
    # A model, an engine and the server itself, in this order.
    for error in (
        ModserveError(Code.INTERNAL, TritonError(text).message()),
        from_exception(ValueError(text), "a model"),
        ModserveError(Code.INVALID_ARG, text),
    ):
        _said(error)
    _logged(text)
    _folder(text)
    _measured(text)


def _text(data: bytes) -> str:
    kind, rest = data[:1], data[1:]
    if kind == b"n" and rest:  # so many times
        return rest[1:].decode("utf-8", "surrogateescape") * min(1 << (rest[0] % 20), _MOST // len(rest))
    if kind == b"u":
        return rest[: len(rest) // 2 * 2].decode("utf-16-le", "surrogatepass")
    return rest.decode("utf-8", "surrogateescape")


def _said(error: ModserveError) -> None:
    """To clients, in lists of models, on pages and terminals."""
    told = failures.public_message(error)
    assert orjson.loads(infer_response.encode_error(error)) == {"error": told}
    assert orjson.loads(infer_response.encode_stream_error(error, "7", True))["error"] == told
    assert type(response_writer.encode_stream_error(error, "7").SerializeToString()) is bytes
    assert message_text(told).isascii()
    entries = [IndexEntry("model", 1, LifecycleState.UNAVAILABLE, error.reason)]
    assert json.loads(orjson.dumps(repository.index_json(entries)))[0]["reason"] == error.reason
    assert repository.index_message(entries).models[0].reason == error.reason
    assert all(line.isprintable() for line in models_table(entries).split("\n"))
    recent = RecentFailures()
    recent.add("HTTP", error.message, 1, error.message, 500, error.message)
    orjson.dumps([each.message + each.model for each in recent.latest()])


def _logged(text: str) -> None:
    for form in LogFormat:
        record = logging.LogRecord("modserve", logging.ERROR, "file", 1, "%s", (text,), None)
        assert formatter(form, False).format(record).isprintable()


def _measured(text: str) -> None:
    """Raises INVALID_ARG for a text that cannot be on the page of metrics."""
    metrics = MetricStore().of_model()
    try:
        metrics.family("family", text, "counter")
        metrics.family("other", "help", "counter")
        metrics.metric("other", {"label": text})
    except ModserveError:
        assert not _is_written(text)
        raise
    assert _is_written(text)


def _folder(text: str) -> None:
    """A folder is a model if clients can say its name, and else is left out with a remark that can be printed."""
    name = text.replace("/", "").replace("\0", "")[:40].lstrip(".")
    try:
        check_model_name(name)
    except ModserveError as error:
        _said(error)
        if not name.strip():
            return
    else:
        assert _is_written(name)
    with tempfile.TemporaryDirectory() as root:
        try:
            os.mkdir(os.path.join(root, name))
        except (OSError, UnicodeEncodeError):
            return  # no file system has such a name
        found = LocalRepository(Path(root))
        assert found._names() == [name] * _is_written(name)
        assert len(found._remarks()) == (not _is_written(name))
        assert all(map(_is_written, found._remarks()))


def _is_written(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
