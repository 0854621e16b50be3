"""A server that runs as long as the test process, and takes models in and lets them go again."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote

from repositories import HELD, write_identity
from server_process import LOADED, NO_VARIABLES, WORKERS, ServerProcess, eventually

_PLACES = 8
_LAST = "the_last_of_a_guest"


class OpenServer(ServerProcess):
    """In explicit mode, and without models but for as long as a block of `host` lasts.

    Its repositories are links, which point to the folders of the tests. It knows the backends of `HELD`.
    """

    def __init__(self, root: Path, options: Sequence[str], environment: Mapping[str, str]) -> None:
        self._nothing = root / "nothing"
        self._nothing.mkdir()
        write_identity(root / "marks", _LAST)
        self._free = [root / f"place{number}" for number in range(_PLACES)]
        for place in self._free:
            place.symlink_to(self._nothing)
        self._errors: list[str] = []
        """Errors of all blocks that are over."""
        explicit = ["--model-control-mode=explicit"]
        super().__init__([root / "marks", *self._free], [*explicit, *options], {**HELD, **environment})
        self._ports: dict[str, str] = {}

    def _port(self, name: str) -> int:
        return int(self._ports[name])

    def load(self, name: str) -> None:
        status, text = self._change(name, "load")
        assert status == 200, text

    @contextmanager
    def host(
        self, *folders: Path, load: Sequence[str] | None = None, errors: Sequence[str] = ()
    ) -> "Iterator[ServerProcess]":
        """All models of `folders`, or those of `load`, loaded; none of them afterwards, nor any loaded in the block.

        Models of other names than those of blocks around it, all of which load: a version that never did would keep the
        server from being ready for ever. Inside, `log` begins with the block; `errors` are as for `ServerProcess.wait`.
        """
        around, before, children = self._begin, self._in_use() | self._unready(), _children(self.pid)
        places = [self._free.pop() for _ in folders]
        self._begin, named = len(self._lines), len(self._errors)
        try:
            for place, folder in zip(places, folders, strict=True):
                _point(place, folder)
            names = [model.name for model in _models(folders)] if load is None else load
            with ThreadPoolExecutor(4) as threads:
                list(threads.map(self.load, names))
            yield self
        except BaseException:
            self._clear(before, children)
            raise
        else:
            self._clear(before, children)
            self._errors += errors
            self.check_log(self._errors[named:])
        finally:
            for place in places:
                _point(place, self._nothing)
            self._free += places
            self._begin = around

    @classmethod
    @contextmanager
    def opened(
        cls, root: Path, options: Sequence[str], environment: Mapping[str, str] = NO_VARIABLES
    ) -> "Iterator[OpenServer]":
        """Stops in order; over its whole life it has logged no errors but those that blocks named."""
        server = cls(root, options, environment)
        try:
            server.wait_for(LOADED)
            server._ports = dict(re.findall(r"^(\S+) listening on \S+:(\d+)$", server.log, re.MULTILINE))
            yield server
            server.stop(errors=server._errors)
        finally:
            server.dispose()

    def _clear(self, before: Set[str], children: Set[int]) -> None:
        """Unload what is not of `before`, wait until nothing of it runs, and until all it logged is read."""
        past = {each["name"] for each in self._index() if each.get("reason") != "unloaded"}
        for name in (past | self._unready()) - before:
            self._change(name, "unload")
        eventually(lambda: self._in_use() | self._unready() <= before)
        eventually(lambda: _children(self.pid) <= children)
        read = len(self.log)
        self.load(_LAST)
        self._change(_LAST, "unload")
        eventually(lambda: self.log[read:].count(f"model '{_LAST}', version 1: unloaded") >= int(WORKERS or 1))

    def _in_use(self) -> Set[str]:
        return {each["name"] for each in self._index() if each["state"] != "UNAVAILABLE"}

    def _index(self) -> list[dict[str, str]]:
        """The versions that were to be loaded once."""
        return [each for each in json.loads(self._call("/v2/repository/index")[1]) if "state" in each]

    def _unready(self) -> Set[str]:
        """The models that keep the server from being ready."""
        status, text = self._call("/v2/health/ready", "GET")
        return set() if status == 200 else {each["name"] for each in json.loads(text)["reasons"]}

    def _change(self, name: str, verb: str) -> tuple[int, str]:
        return self._call(f"/v2/repository/models/{quote(name, safe='')}/{verb}")

    def _call(self, path: str, method: str = "POST") -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", self.http_port, timeout=60)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


def _models(folders: Sequence[Path]) -> list[Path]:
    return sorted(model for folder in folders for model in folder.iterdir() if model.is_dir())


def _point(place: Path, folder: Path) -> None:
    new = place.with_suffix(".new")
    new.symlink_to(folder)
    new.replace(place)


def _children(pid: int) -> Set[int]:
    """All processes below it, those of a supervisor's workers included."""
    found: set[int] = set()
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            found |= {child, *_children(child)}
    return found
