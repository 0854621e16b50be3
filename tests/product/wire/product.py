"""One server under test: its life, the orders that it gets, and what must be as at the start when nothing runs.

`story` has every step in words; a `Violation` carries it, with the log.
"""

import json
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import astuple
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from python_faults import open_files
from server_process import LOADED, ServerProcess
from wire import Answer, http

from attack.measuring import Footprint, footprint
from attack.probe import queue_seconds
from modserve.client.http_sync import UnixConnection
from product.wire import models
from product.wire.clients import EVENTS, KEPT, STREAM_WAYS, WAYS, Clients
from product.wire.ledger import ANSWERED, CUT, Disturbance, Ledger, Ticket, error
from product.wire.questions import HOST, Question, by_kept_connection
from product.wire.settings import Setting

PATIENCE_S = 30.0
"""In which something must go on, not counting what the server waited for a core."""

_ROUNDS_S = 30.0
"""In which counts must be back, and models ready: their processes may have to start again."""

_AFTER_THE_FAREWELL_S = 1.2
"""After the stop has begun: longer than a server that stops waits for idle connections."""

_MOST_KILLS = 2
_MORE_THREADS = 8
"""Pools fill as they are first used."""
_MORE_MB = 96.0
_MORE_SOCKETS = 2

_EXPECTED_ERRORS = (
    r"cannot be loaded: 1 problem in the configuration",
    r"instance '\S+' was lost: its process \d+ was killed by SIGKILL",
    r"instance '\S+' was lost and cannot be replaced: when it started, its process \d+ was killed by SIGKILL",
)
_ZERO = re.compile(
    r"^(modserve_requests_in_flight|nv_inference_pending_request_count|modserve_model_requests_waiting"
    r"|modserve_routing_shadow_in_flight|modserve_request_memory_bytes|modserve_connections"
    r'|modserve_instances(?=\{.*state="lost"))(\{.*\})? (\S+)$',
    re.MULTILINE,
)

_OF_CONNECTIONS = ("modserve_request_memory_bytes", "modserve_connections")
"""What clients hold by being connected."""

KILLED = r"INTERNAL: .*its process \d+ (was killed by SIGKILL|had closed its connection)"
NO_INSTANCE = r"(UNAVAILABLE|ERROR): .*was lost"
UNKNOWN = (
    r"(NOT_FOUND|ERROR): Request for unknown model|(UNAVAILABLE|ERROR): .*no available versions: it is still loading"
)
STOPPING = (
    r"UNAVAILABLE: .*(Server is stopping|Server not ready|shutting down)",
    r"^ERROR: .*(Server is stopping|Server not ready|shutting down)",
)


NOT_CONNECTED = f"{CUT}: no new connection"


class Violation(AssertionError):
    """An invariant that does not hold."""


def _files(pid: int) -> list[str]:
    """What is open but for shared memory, each block of which costs a descriptor as long as it is kept for the next."""
    return [file for file in open_files(pid) if not file.startswith("/memfd:")]


def http_refuses(port: int) -> bool:
    connection = HTTPConnection(HOST, port, timeout=PATIENCE_S)
    try:
        connection.connect()
    except OSError:
        return True
    finally:
        connection.close()
    return False


def _children(parent: int) -> list[tuple[int, list[str]]]:
    """The processes that another has started, with the files that they have open."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with suppress(OSError):  # gone meanwhile
            stat = Path(f"/proc/{pid}/stat").read_text()
            if int(stat.rsplit(")", 1)[1].split()[1]) == parent:
                found.append((pid, [os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()]))
    return found


def _sockets(pid: int) -> int:
    count = 0
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            count += os.readlink(file).startswith("socket:")
    return count


class Product:
    def __init__(self, repository: Path, setting: Setting) -> None:
        self._repository = repository
        self._admin = str(repository.with_suffix(".sock"))
        """The server's socket for operators: orders and metrics go over it, and the ports do not have them."""
        self._setting = setting
        models.write(repository)
        self.story: list[str] = []
        self.ledger = Ledger()
        self.server: ServerProcess
        self._waited: dict[int, float] = {}
        """Seconds that each process of the server has waited for a core."""
        self.clients: Clients
        self.forms = dict.fromkeys(models.FORMS, 0)
        self._excused: dict[str, Disturbance] = {}
        self._start()
        # Of the first server only: those after it may begin with other forms, which have fewer processes.
        self._files, self._sockets = self._open()
        self._children = len(self.children())

    def _start(self) -> None:
        options = [*models.OPTIONS, *self._setting.options, f"--admin-address=unix:{self._admin}"]
        self.server = ServerProcess([self._repository], options, self._setting.environment)
        self.server.wait_for(LOADED, 120.0)
        self.clients = self._clients()
        self.routed = False
        self._kills: Counter[str] = Counter()
        for name, place in self.forms.items():
            self._excuse(name, place)
        self._tour()
        self.quiesce()
        self._baseline = self._footprints()

    def _clients(self) -> Clients:
        return Clients(self.server, self.ledger, self._admin, self._setting)

    def tell(self, step: str) -> None:
        self.story.append(step)

    def fail(self, complaint: str) -> None:
        story = "\n".join(self.story[-200:])
        raise Violation(f"--- the log ---\n{self.server.log[-20_000:]}\n--- the story ---\n{story}\n---\n{complaint}")

    def check(self, fact: bool, complaint: str) -> None:
        if not fact:
            self.fail(complaint)

    # Requests

    def question(self, ticket: Ticket, ms: int = 0, version: str = "", timeout_us: int = 0) -> Question:
        number = ticket.number % 5 if ticket.model == models.CACHED else ticket.number
        return Question(ticket.model, ticket.number, (number, ms), version, timeout_us)

    def send(
        self, model: str, way: str, ms: int = 0, *, version: str = "", timeout_us: int = 0, deadline_s: float = 0.0
    ) -> Ticket:
        excuses = []
        if timeout_us:
            excuses.append(rf"UNAVAILABLE: .*{models.EXPIRED}|ERROR: .*{models.EXPIRED}")
        if deadline_s:
            excuses.append(r"DEADLINE_EXCEEDED|Deadline Exceeded")
        if model == models.VERSIONS and ms == 13:
            excuses.append("version 2 does not like this")
        ticket = self.ledger.open(model, way, excuses)
        question = self.question(ticket, ms, version, timeout_us)
        return self.clients.send_as(ticket, question, *([deadline_s] if deadline_s else []))

    def send_stream(self, way: str, count: int, pause_ms: int = 0, width: int = 0) -> Ticket:
        return self.clients.send_stream(self._stream_question(count, pause_ms, width), way)

    def send_slow_reader(self, count: int, width: int) -> Ticket:
        return self.clients.send_slow_reader(self._stream_question(count, 0, width))

    def _stream_question(self, count: int, pause_ms: int, width: int) -> Question:
        number = self.ledger.number()
        return Question(models.MANY, number, (number, count, pause_ms, width), batched=False)

    def _tour(self) -> None:
        """Each kind of request once, so that whatever is made at the first use is there."""
        for model in models.ECHOES:
            for way in WAYS:
                self.send(model, way)
        for way in STREAM_WAYS:
            self.send_stream(way, 2)
        self.clients.send_sequence([1, 2], over_grpc=False)

    # Orders

    def order(self, path: str, document: object = None, method: str = "POST") -> Answer:
        body = b"" if document is None else json.dumps(document).encode()
        connection = UnixConnection(self._admin, PATIENCE_S)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def load(self, name: str) -> Answer:
        return self.order(f"/v2/repository/models/{name}/load", {})

    def must_load(self, name: str) -> None:
        answer = self.load(name)
        self.check(answer.status == 200, f"'{name}' does not load: {answer}")

    def _excuse(self, name: str, place: int) -> None:
        """What the new form may refuse is excused from now on; what the old one might, until now."""
        refusals = models.FORMS[name][place].refusals
        patterns = [rf"UNAVAILABLE: .*{text}|ERROR: .*{text}" for text in refusals]
        users = [user for user, used in models.USES.items() if name in used]
        self._excused[name] = self.ledger.disturb([name, *users], *patterns)

    def change(
        self, name: str, places: Sequence[int], *, at_once: bool = False, around: Callable[[], object] = lambda: None
    ) -> None:
        """Load these forms, one after the other, or without waiting for the load before.

        `around` is done before each of them, and after the last.
        """
        former = []
        with ThreadPoolExecutor(4) as threads:
            loads = []
            for place in places:
                around()
                models.put_form(self._repository, name, place)
                former.append(self._excused[name])
                self._excuse(name, place)
                self.forms[name] = place
                loads.append(threads.submit(self.load, name))
                if not at_once:
                    loads[-1].result()
        for each in loads:
            self.check(each.result().status == 200, f"'{name}' does not load: {each.result()}")
        if at_once:  # the last look at the repository may have been at any of them
            self.must_load(name)
        around()
        for disturbance in former:
            disturbance.close()

    def load_other_files(self, name: str) -> None:
        self._kills[name] = 0
        models.touch_files(self._repository, name)
        self.must_load(name)

    def load_broken(self, name: str) -> None:
        models.put_broken(self._repository, name)
        answer = self.load(name)
        models.put_form(self._repository, name, self.forms[name])
        self.check(answer.status >= 400, f"a broken configuration of '{name}' loads: {answer}")

    def unload(self, name: str) -> Disturbance:
        users = [user for user, used in models.USES.items() if name in used]
        disturbance = self.ledger.disturb([name, *users], UNKNOWN)
        answer = self.order(f"/v2/repository/models/{name}/unload", {})
        self.check(answer.status == 200, f"'{name}' does not unload: {answer}")
        return disturbance

    def _serving(self) -> list[int]:
        """The processes that serve: the server's own, or its workers'."""
        return [self.server.pid] if self._setting.workers == 1 else [pid for pid, _ in _children(self.server.pid)]

    def children(self, name: str = "") -> list[int]:
        """The processes of a model's instances."""
        found = []
        for pid, files in [each for parent in self._serving() for each in _children(parent)]:
            if any(file.startswith(f"/memfd:model '{name}" if name else "/memfd:model") for file in files):
                found.append(pid)
        return sorted(found)

    def kill(self, name: str, place: int) -> int:
        """One instance's process, which costs no more than what that ran.

        An instance that is lost again and again is made anew later and later; here it is loaded anew before that.
        """
        self._kills[name] += 1
        if self._kills[name] > _MOST_KILLS:
            self.load_other_files(name)
        pids = self.children(name)
        if not pids:
            return 0
        users = [user for user, used in models.USES.items() if name in used]
        self.ledger.disturb([name, *users], KILLED, r"^ERROR: .*its process", most=4)
        self.ledger.disturb([name, *users], NO_INSTANCE)
        os.kill(pids[place % len(pids)], signal.SIGKILL)
        return pids[place % len(pids)]

    def route(self, routing: dict[str, Any] | None) -> None:
        if routing is None:
            answer = self.order(f"/v2/models/{models.VERSIONS}/routing", method="DELETE")
            self.check(answer.status in (200, 204) or not self.routed, f"the routing does not end: {answer}")
        else:
            answer = self.order(f"/v2/models/{models.VERSIONS}/routing", routing)
            self.check(answer.status == 200, f"the routing is refused: {answer}")
        self.routed = routing is not None

    # Checks

    def idle_clock(self) -> float:
        for pid in self._serving():
            self._waited[pid] = max(queue_seconds(pid), self._waited.get(pid, 0.0))
        return time.monotonic() - sum(self._waited.values())

    def quiesce(self) -> None:
        """All requests have their outcome, the counts are back, and each model that is ready answers."""
        self.settle()
        self.until(self._nothing_runs, "the counts do not return to 0")
        for name in (*models.FORMS, models.SUMS):
            self.until(partial(self._ready, name), f"not ready: {name}")
        if self._setting.platform:
            ping = http(self.server.http_port, "GET", "/ping").status
            self.check(ping == 200, f"ready, and /ping is {ping}")
        for disturbance in self.ledger.disturbances:
            if disturbance not in self._excused.values():
                disturbance.close()
        for names in (models.LARGE, [name for name in models.ECHOES if name not in models.LARGE]):
            for name in names:
                self.send(name, KEPT)
            self.settle()  # the others come back into memory after the large ones, for which they may have left
        self.send_stream(EVENTS, 1)
        self.clients.send_sequence([1], over_grpc=False)
        self.settle()

    def _ready(self, name: str) -> bool:
        return http(self.server.http_port, "GET", f"/v2/models/{name}/ready").status == 200

    def settle(self) -> None:
        self.clients.on.set()
        left = self.ledger.wait_for_all(PATIENCE_S, self.idle_clock)
        if left:
            self.fail(f"{len(left)} requests have no outcome, the first is {left[0]}\n{self._index()}")
        self.clients.on.clear()
        complaints = self.ledger.judge()
        self.check(not complaints, "\n".join(complaints[:20]))
        self.check(self.server.running, "the server has ended")

    def _index(self) -> str:
        return str(self.order("/v2/repository/index", {}).body.decode())

    def until(self, fact: Callable[[], object], complaint: str, why: Callable[[], object] | None = None) -> None:
        """As `eventually`, by the clock of what the server could do."""
        end = self.idle_clock() + _ROUNDS_S
        while not fact():
            if self.idle_clock() > end:
                self.fail(f"{complaint}: {(why or self.busy)()}")
            time.sleep(0.02)

    def busy(self) -> list[str]:
        return [match[0] for match in self._counts() if match[1] not in _OF_CONNECTIONS]

    def _counts(self) -> list[re.Match[str]]:
        page = self.order("/metrics", method="GET").body.decode()
        return [match for match in _ZERO.finditer(page) if float(match[3])]

    def _nothing_runs(self) -> bool:
        return not self.busy()

    def in_flight(self, model: str) -> float:
        page = self.order("/metrics", method="GET").body.decode()
        match = re.search(rf'^modserve_requests_in_flight{{model="{model}"}} (\S+)$', page, re.MULTILINE)
        return float(match[1]) if match else 0.0

    def restore(self) -> None:
        """Everything as at the start, and nothing left of what happened since."""
        self.route(None)
        for name, place in self.forms.items():
            if place:
                self.change(name, [0])
        self.quiesce()
        self.clients.close()
        self.until(lambda: not self._growth(), "the server keeps what it had", self._growth)
        memory = self.order("/v2/memory", method="GET").json
        self.check(not memory["limit"] or memory["held"] <= memory["limit"], f"the models hold too much: {memory}")
        self.clients = self._clients()

    def _growth(self) -> list[str]:
        now, before = self._footprints(), self._baseline
        files, sockets = self._open()
        grown = [match[0] for match in self._counts()]
        if now.rss_mb > before.rss_mb + _MORE_MB:
            grown.append(f"memory: {before.rss_mb:.0f} -> {now.rss_mb:.0f} MB")
        if now.threads > before.threads + _MORE_THREADS:
            grown.append(f"threads: {before.threads} -> {now.threads}")
        if more := Counter(files) - Counter(self._files):
            grown.append(f"files: {dict(more)} more than at the start")
        if sockets > self._sockets + _MORE_SOCKETS:
            grown.append(f"sockets: {self._sockets} -> {sockets}")
        if len(self.children()) > self._children:
            grown.append(f"processes: {self._children} -> {self.children()}")
        return grown

    def _footprints(self) -> Footprint:
        """That of all processes that serve."""
        each = [footprint(pid) for pid in self._serving()]
        return Footprint(*(sum(values) for values in zip(*map(astuple, each), strict=True)))

    def _open(self) -> tuple[list[str], int]:
        """Files and the number of sockets, of all processes that serve."""
        serving = self._serving()
        return [file for pid in serving for file in _files(pid)], sum(map(_sockets, serving))

    # The end

    def stop(
        self, count: int = 0, ms: int = 0, racers: int = 0, *, uploads: int = 0, drains: bool = False, loads: str = ""
    ) -> None:
        """SIGTERM while `count` requests are under way, and `racers` kept connections send one after the other.

        `uploads`: requests that have come but for their last byte, which follows when idle connections may send nothing
        more. `drains`: the server is drained by a call before; `loads`: the model that a call loads meanwhile.
        """
        self.settle()
        accepted = [self.send(models.SLOW, WAYS[place % len(WAYS)], ms) for place in range(count)]
        users = [*models.FORMS, models.SUMS]

        def all_accepted() -> bool:
            # Those that are over count before those that run, so that none is in neither.
            over = sum(1 for ticket in accepted if ticket.outcome is not None)
            return over + self.in_flight(models.SLOW) >= count

        self.until(all_accepted, "requests are not accepted")
        sent = [ticket.number for ticket in accepted]
        self._racing = threading.Semaphore(0)
        threads = [threading.Thread(target=self._race, args=(place,)) for place in range(racers)]
        for thread in threads:
            thread.start()
        for _ in threads:
            self._racing.acquire()
        stopping, halves = threading.Event(), threading.Semaphore(0)
        accepted = [self._upload(stopping, halves, over_grpc=bool(place % 2)) for place in range(uploads)]
        sent += [ticket.number for ticket in accepted]
        for _ in accepted:
            self.check(
                halves.acquire(timeout=PATIENCE_S), f"an upload has not begun: {[str(each) for each in accepted]}"
            )
        disturbance = self.ledger.disturb(users, *STOPPING)
        if loads:
            models.touch_files(self._repository, loads)
            threads.append(threading.Thread(target=self._load_while_stopping, args=(loads,)))
            threads[-1].start()
        stopping.set()
        if drains:
            report = self.order("/v2/health/drain")
            self.check(report.status == 200 and report.json["drained"], f"not drained: {report}")
            self.check(self.server.running, "the server has ended, and was only to be drained")
            self.check(http_refuses(self.server.http_port), "a drained server takes new connections")
        self.server.signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        left = self.ledger.wait_for_all(PATIENCE_S, self.idle_clock)
        self.check(not left, f"{len(left)} requests have no outcome after SIGTERM: {left[:1]}")
        lost = [t for t in self.ledger.tickets if t.number in sent and not self._is_answered_or_killed(t)]
        self.check(not lost, f"accepted before SIGTERM, and not answered: {[str(ticket) for ticket in lost]}")
        self.clients.close()
        complaints = self.ledger.judge()
        self.check(not complaints, "\n".join(complaints[:20]))
        disturbance.close()
        self._end()

    def _upload(self, stopping: threading.Event, half: threading.Semaphore, over_grpc: bool) -> Ticket:
        def pause() -> None:
            half.release()
            stopping.wait()
            # Its port may still take connections: that of several workers closes with the last of them.
            self.until(lambda: "stopping: no new requests" in self.server.log, "the server does not stop")
            time.sleep(_AFTER_THE_FAREWELL_S)

        number = self.ledger.number()
        return self.clients.upload(Question(models.PLAIN, number, (number, 0)), pause, over_grpc)

    def _is_answered_or_killed(self, ticket: Ticket) -> bool:
        """The latter by a kill before the stop, which the ledger judges."""
        outcome = ticket.outcome
        assert outcome is not None
        said = f"{outcome.code}: {outcome.message}"
        killed = bool(self._kills[ticket.model]) and re.search(f"{KILLED}|{NO_INSTANCE}", said) is not None
        return outcome.kind == ANSWERED or killed

    def _load_while_stopping(self, name: str) -> None:
        """It may succeed, be refused, or be given up; the connection may end."""
        with suppress(OSError, HTTPException):
            self.load(name)

    def _race(self, place: int) -> None:
        """On a kept connection, one request after the other, until the server says that it stops."""
        connection = HTTPConnection(HOST, self.server.http_port, timeout=PATIENCE_S)
        answers = 0
        outcome = None
        try:
            while outcome is None or outcome.kind == ANSWERED:
                ticket = self.ledger.open(models.PLAIN, f"racer {place}", (NOT_CONNECTED,))
                kept = connection.sock is not None
                try:
                    outcome, wrong = by_kept_connection(
                        connection, self.question(ticket), self._setting, by_platform=bool(place % 2)
                    )
                except (OSError, HTTPException) as failure:
                    text = f"cut after {answers} answers" if kept else "no new connection"
                    outcome, wrong = error(CUT, f"{text}: {failure!r}"), ""
                self.ledger.settle(ticket, outcome, wrong)
                answers += 1
                if answers == 1:
                    self._racing.release()
        finally:
            connection.close()
            if not answers:
                self._racing.release()

    def _end(self) -> None:
        lines = self.server.log.splitlines()
        errors = [
            text for text in _EXPECTED_ERRORS if any(re.search(text, line) for line in lines if " ERROR " in line)
        ]
        try:
            self.server.wait(0, errors=errors, seconds=120.0)
        except AssertionError as failure:
            self.fail(str(failure)[:3000])
        finally:
            self.server.dispose()

    def restart(
        self, count: int, ms: int, racers: int, *, uploads: int = 0, drains: bool = False, loads: str = ""
    ) -> None:
        self.stop(count, ms, racers, uploads=uploads, drains=drains, loads=loads)
        self._start()

    def dispose(self) -> None:
        self.server.dispose()
        self.clients.close()
