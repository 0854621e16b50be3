"""The keys of clients, in a file that its owner changes, damages and loses while the server reads it again and again.

`KeyFile` knows which documents may be in use, and so what may become of a call: the server takes up to two seconds for
a change, longer where its other threads get nothing done.
"""

import copy
import json
import os
from contextvars import copy_context
from pathlib import Path
from typing import Any, Final

from modserve.access import caller
from modserve.access.authority import Authority
from modserve.access.caller import CALLER, Caller
from modserve.access.credentials import API_KEY
from modserve.access.key_file import digest, format_time
from modserve.access.permissions import CallNeed, CallScope
from modserve.access.watched_file import WatchedFile
from modserve.core.errors import Code, ModserveError, PermissionDeniedError, UnauthenticatedError
from modserve.core.tenants import Tenant
from modserve.server import Server
from modserve.server.scoped import ScopedServer

from .posts import Post
from .simulation import SimulatedLoop

Document = dict[str, Any]

POSTS: Final = "posts"
"""The key of the clients over HTTP, and their tenant."""
NAMES: Final = ("first", "second")
"""Other keys. Each has a tenant of this name."""
INFER: Final = CallNeed("infer", CallScope.MODEL)
CHANGES: Final = ("revoke", "restore", "rotate", "expire", "narrow", "read", "limit", "starve", "weigh")
DAMAGES: Final = ("half", "empty", "garbage", "gone", "folder", "date", "number", "deep")
_EPOCH: Final = 1_900_000_000
_READ_S: Final = 2.0
_ALL: Final = {"*": ["infer", "read"]}
_LIMITS: Final[dict[str, dict[str, float]]] = {
    "limit": {"concurrency": 1, "requests_per_second": 1000.0, "queue_size": 1},
    "starve": {"requests_per_second": 0.2, "rows_per_second": 0.2},
    "weigh": {"weight": 7.5},
}


_REASONS: Final[dict[type, set[str]]] = {UnauthenticatedError: {"unknown"}, PermissionDeniedError: {"denied"}}


class KeyFile:
    """A file of keys, and an `Authority` that follows it, on the time of `loop`."""

    def __init__(self, folder: Path, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._path = folder / "keys.json"
        self._writes = 0
        self.secrets = {name: f"the secret of {name}, number 0" for name in (*NAMES, POSTS)}
        self._former: dict[str, str] = {}
        rows = [{"name": name, "sha256": digest(secret), "scopes": _ALL} for name, secret in self.secrets.items()]
        self.documents: list[Document] = [{"keys": rows, "tenants": {}}]
        """All that were ever good."""
        self.oldest = 0
        """Of those that may be in use: this one, and all after it."""
        self.is_good = True
        self._write(self.documents[0])
        self._watched = WatchedFile(self._path)
        self.authority = Authority(self._watched.content, clock=self.now, steady=loop.time)
        self._streams: dict[str, Caller] = {}
        self._posts: list[tuple[Post, str, str, int, set[str]]] = []
        loop.act(lambda: self._watched.start(self.authority.replace))

    def now(self) -> float:
        """The time of day."""
        return _EPOCH + self._loop.now_ns / 1e9

    def stop(self) -> None:
        self._watched.stop()
        self.authority.close()

    # What its owner does

    def change(self, kind: str, name: str) -> None:
        """One of `CHANGES`, of a key or its tenant. Mends what was damaged."""
        document = copy.deepcopy(self.documents[-1])
        [row] = [each for each in document["keys"] if each["name"] == name]
        if kind == "rotate":
            self._former[name] = self.secrets[name]
            self.secrets[name] = f"the secret of {name}, number {len(self.documents)}"
            row["previous"] = {"sha256": row["sha256"], "expires": format_time(self.now() + 10)}
            row["sha256"] = digest(self.secrets[name])
        elif kind in _LIMITS:
            document["tenants"][name] = _LIMITS[kind]
        else:
            row |= {
                "revoke": {"revoked": True},
                "restore": {"revoked": False, "expires": None, "scopes": _ALL},
                "expire": {"expires": format_time(self.now() + 5)},
                "narrow": {"scopes": {"plain": ["infer"], "str*": ["infer"]}},
                "read": {"scopes": {"*": ["read"]}},
            }[kind]
            if kind == "restore":
                document["tenants"].pop(name, None)
        self.documents.append(document)
        self._write(document)
        self.is_good = True

    def damage(self, kind: str) -> None:
        """One of `DAMAGES`: what was good before stays in use."""
        self.is_good = False
        text = json.dumps(self.documents[-1])
        self._remove()
        if kind == "folder":
            self._path.mkdir()
        elif kind != "gone":
            self._put(
                {
                    "half": text[: len(text) // 2],
                    "empty": "",
                    "garbage": "\x00" * 100,
                    "date": "keys: [{name: a, expires: 2030-02-30}]",
                    "number": '{"keys": ' + "9" * 5000 + "}",
                    "deep": '{"keys": ' + "[" * 200_000,
                }[kind]
            )

    def mend(self) -> None:
        """All keys are good for everything, without limits."""
        for name in self.secrets:
            self.change("restore", name)

    def time_passed(self, seconds: float) -> None:
        """And other threads got something done."""
        if seconds >= _READ_S and self.is_good:
            self.oldest = len(self.documents) - 1

    def _write(self, document: Document) -> None:
        self._remove()
        self._put(json.dumps(document))

    def _put(self, text: str) -> None:
        self._writes += 1
        new = self._path.with_suffix(".new")
        new.write_text(text)
        os.utime(new, (self._writes, self._writes))  # the clock of files is too coarse for what happens here
        new.replace(self._path)

    def _remove(self) -> None:
        if self._path.is_dir():
            self._path.rmdir()
        else:
            self._path.unlink(missing_ok=True)

    # What its clients do

    def secret(self, name: str, *, former: bool = False) -> str:
        return self._former.get(name, self.secrets[name]) if former else self.secrets[name]

    def outcomes(self, secret: str, model: str, since: int) -> set[str]:
        """What may become of a call for a model: ``ok``, ``unknown``, ``denied`` or ``unseen``."""
        return {self._outcome(document, secret, model) for document in self.documents[since:]}

    def shown(self, post: Post, model: str) -> None:
        """A client begins a request with its key, for a model."""
        secret, since = self.secret(POSTS), self.oldest
        post.show(secret)
        self._posts.append((post, secret, model, since, self.outcomes(secret, model, since)))

    def check_posts(self) -> None:
        """All of them are over."""
        for post, secret, model, since, before in self._posts:
            possible = before | self.outcomes(secret, model, since)
            reason = {200: "ok", 401: "unknown", 403: "denied"}.get(post.status)
            assert reason is None or reason in possible, f"{post!r}, expected {possible}"

    def _outcome(self, document: Document, secret: str, model: str) -> str:
        hashed = digest(secret)
        for row in document["keys"]:
            ends = [row.get("expires")]
            if row["sha256"] != hashed:
                previous = row.get("previous")
                if previous is None or previous["sha256"] != hashed:
                    continue
                ends.append(previous["expires"])
            if row.get("revoked") or any(end is not None and end <= format_time(self.now()) for end in ends):
                return "unknown"
            kinds = {
                kind
                for pattern, words in row["scopes"].items()
                if pattern in ("*", model) or (pattern == "str*" and model.startswith("str"))
                for kind in words
            }
            return "ok" if "infer" in kinds else "denied" if kinds else "unseen"
        return "unknown"

    def enter(self, server: Server, name: str, secret: str, model: str, *, in_stream: bool) -> Tenant:
        """Find out who calls, as front ends do. `in_stream`: by the call that the key has open already.

        Raises what refuses the caller; also where it should not, an AssertionError.
        """
        failure: ModserveError | None = None
        try:
            tenant: Tenant = copy_context().run(self._enter, server, secret, model, in_stream)
        except ModserveError as error:
            failure = error
        possible = self.outcomes(secret, model, self.oldest)
        reasons = _REASONS.get(type(failure), {"ok"})
        if failure is not None and failure.code is Code.NOT_FOUND:
            reasons = {"unseen", "ok"}
        assert possible & reasons, f"{name} at '{model}': {failure!r}, expected {possible}"
        if failure is not None:
            raise failure
        return tenant

    def _enter(self, server: Server, secret: str, model: str, in_stream: bool) -> Tenant:
        shown = ((API_KEY, secret.encode()),)
        stream = self._streams.get(secret) if in_stream else None
        if stream is not None:
            CALLER.set(stream)
        else:
            identity = self.authority.recognise(shown) or self.authority.resolve(shown)
            caller.enter(self.authority, shown, identity, INFER)
            if in_stream:
                self._streams[secret] = caller.current()
        ScopedServer(server).model(model)
        tenant = caller.current().tenant
        assert tenant is not None
        return tenant
