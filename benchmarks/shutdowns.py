"""A server that stops under load: does a request get lost that it had taken?

    python benchmarks/shutdowns.py                                # three shutdowns a kind, each after 10,000 requests
    python benchmarks/shutdowns.py --requests 1000 --times 1 --workers 1 --kind connections

Clients of one kind send requests until nobody listens any more; after so many, the server gets SIGTERM. A refused
connection is no loss, and a reset one is, or one that ends without an answer. Messages of gRPC streams that the server
has not read are their clients' to repeat, and counted apart: the server's access log has those that it has read. Exit
code 1 if a request is lost.
"""

import argparse
import asyncio
import http.client
import itertools
import re
import ssl
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import grpc
import grpc.aio

from modserve.pb import inference as pb
from process_tree import end
from side_by_side.running import free_ports, ready

HOST = "127.0.0.1"
CLIENTS = 16
AHEAD = 8
"""Requests that pipelining clients and streams send before they wait."""
_SECONDS = 30.0
_INFER = f"/{pb.SERVICE}/ModelInfer"
_STREAM = f"/{pb.SERVICE}/ModelStreamInfer"
_UNWRITTEN = "Internal error from Core"
"""The client library's own, in place of the server's status: it was writing when the stream ended."""
_JSON = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[3]}]}'
_GET = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"
_POST = b"POST /v2/models/identity/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(_JSON), _JSON)
_CONFIG = """name: "identity"
backend: "identity"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""


_UNVERIFIED = ssl._create_unverified_context()  # the certificate is made for this run


class Tally:
    """Outcomes of the clients of one server. `enough` is set after so many answers."""

    def __init__(self, requests: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self.unanswered: set[str] = set()
        """Ids of messages of streams that have ended."""
        self.enough = asyncio.Event()
        self._requests = requests

    def count(self, outcome: str, times: int = 1) -> None:
        self.outcomes[outcome] += times
        if self.outcomes["answered"] >= self._requests:
            self.enough.set()

    @property
    def lost(self) -> int:
        return sum(count for outcome, count in self.outcomes.items() if outcome.startswith("lost"))


Client = Callable[[Mapping[str, int], Tally], Awaitable[None]]


async def _http(port: int, tally: Tally, data: bytes, ahead: int, kept: bool, tls: bool = False) -> None:
    """Requests in batches of `ahead`, over one connection while it stays if `kept`, else over one for each batch."""
    while True:
        try:
            reader, writer = await asyncio.open_connection(HOST, port, ssl=_UNVERIFIED if tls else None)
        except OSError:  # nobody listens
            return
        try:
            last = False
            while not last:
                try:
                    idle_end = reader.at_eof()
                    writer.write(data * ahead)
                    last = await _answers(reader, tally, ahead)
                except (OSError, asyncio.IncompleteReadError) as error:
                    tally.count("closed while idle" if idle_end else f"lost: {type(error).__name__}")
                    break
                if not kept:
                    break
        finally:
            writer.close()


async def _answers(reader: asyncio.StreamReader, tally: Tally, count: int) -> bool:
    """Read so many; whether the last of them ends the connection."""
    last = False
    for number in range(count):
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
        tally.count("answered" if b" 200 " in head[:16] else f"refused: {head[9:12].decode()}")
        last = b"connection: close" in head
        if last and number + 1 < count:
            tally.count("lost: behind the last answer", count - number - 1)
            return True
    return last


def request(id: str = "") -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name="identity", id=id)
    message.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 1])
    message.raw_input_contents.append(b"\0\0\0\0")
    return message


def _channel(port: int) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"{HOST}:{port}", options=[("grpc.use_local_subchannel_pool", 1)])


def _gone(error: grpc.RpcError) -> bool:
    """Whether nobody listens."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and "onnect" in (error.details() or "")


async def _grpc(ports: Mapping[str, int], tally: Tally, kept: bool) -> None:
    data, opened = request().SerializeToString(), _channel(ports["grpc"])
    try:
        while True:
            try:
                await opened.unary_unary(_INFER, None, None)(data, timeout=_SECONDS)
                tally.count("answered")
            except grpc.aio.AioRpcError as error:
                if not _gone(error):
                    tally.count(f"lost: {error.details()}")
                return
            if not kept:
                await opened.close(None)
                opened = _channel(ports["grpc"])
    finally:
        await opened.close(None)


_ids = itertools.count()


async def _stream(ports: Mapping[str, int], tally: Tally) -> None:
    async with _channel(ports["grpc"]) as opened:
        while True:
            room, sent = asyncio.Semaphore(AHEAD), set[str]()

            async def requests(room: asyncio.Semaphore = room, sent: set[str] = sent) -> AsyncIterator[bytes]:
                while True:
                    await room.acquire()
                    id = f"message-{next(_ids)}"
                    sent.add(id)
                    yield request(id).SerializeToString()

            try:
                async for answer in opened.stream_stream(_STREAM, None, None)(requests()):
                    response = pb.ModelStreamInferResponse.FromString(answer)
                    sent.discard(response.infer_response.id)
                    room.release()
                    tally.count("refused in its stream" if response.error_message else "answered")
            except grpc.aio.AioRpcError as error:
                if _gone(error):
                    return
                if error.details() == _UNWRITTEN:
                    tally.count("ended while its client wrote")
                elif error.code() is not grpc.StatusCode.UNAVAILABLE:
                    tally.count(f"lost: {error.details()}")
            tally.unanswered |= sent


KINDS: dict[str, Client] = {
    "connections": lambda ports, tally: _http(ports["http"], tally, _POST, 1, False),
    "kept": lambda ports, tally: _http(ports["http"], tally, _POST, 1, True),
    "pipelined": lambda ports, tally: _http(ports["http"], tally, _POST, AHEAD, True),
    "tls-connections": lambda ports, tally: _http(ports["http"], tally, _POST, 1, False, True),
    "tls-kept": lambda ports, tally: _http(ports["http"], tally, _POST, 1, True, True),
    "tls-pipelined": lambda ports, tally: _http(ports["http"], tally, _POST, AHEAD, True, True),
    "metrics": lambda ports, tally: _http(ports["metrics"], tally, _GET, 1, False),
    "grpc": lambda ports, tally: _grpc(ports, tally, True),
    "grpc-connections": lambda ports, tally: _grpc(ports, tally, False),
    "grpc-streams": _stream,
}


async def shut_down(kind: str, requests: int, workers: int) -> Tally:
    """Of one server, which gets SIGTERM after so many answers."""
    with tempfile.TemporaryDirectory() as folder:
        version = Path(folder) / "models" / "identity" / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(_CONFIG)
        ports = dict(zip(("http", "grpc", "metrics"), free_ports(3), strict=True))
        command = [sys.executable, "-m", "modserve", "serve", f"--model-repository={version.parents[1]}"]
        command += [f"--{name}-{what}" for name in ports for what in (f"address={HOST}", f"port={ports[name]}")]
        tls = kind.startswith("tls")
        if tls:
            command += _certificate(Path(folder))
        if kind == "grpc-streams":
            command.append("--access-log=all")
        log_file = Path(folder) / "log"
        with log_file.open("wb") as log:
            process = subprocess.Popen(  # noqa: ASYNC220  # clients start later
                [*command, f"--workers={workers}"], stdout=log, stderr=log, start_new_session=True
            )
        try:
            async with asyncio.timeout(_SECONDS):
                while not await asyncio.to_thread(_ready_over_tls if tls else ready, ports["http"]):  # noqa: ASYNC110  # it is another process
                    await asyncio.sleep(0.05)
            tally = Tally(requests)
            async with asyncio.TaskGroup() as clients:
                for _ in range(CLIENTS):
                    clients.create_task(KINDS[kind](ports, tally))  # type: ignore[arg-type]
                await tally.enough.wait()
                process.terminate()
        finally:
            await asyncio.to_thread(end, process)
        read = set(re.findall(rb" id=(message-\d+) ", log_file.read_bytes()))
        tally.count("lost: read, and not answered", sum(id.encode() in read for id in tally.unanswered))
        tally.count("not read", sum(id.encode() not in read for id in tally.unanswered))
        return tally


def _certificate(folder: Path) -> list[str]:
    """Options of a server with a certificate of its own making."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    subprocess.run(
        [*command, "-days", "2", "-subj", f"/CN={HOST}", "-out", str(certificate), "-keyout", str(key)],
        check=True,
        capture_output=True,
    )
    return ["--http-use-ssl=true", f"--http-server-cert={certificate}", f"--http-server-key={key}"]


def _ready_over_tls(port: int) -> bool:
    connection = http.client.HTTPSConnection(HOST, port, timeout=1, context=_UNVERIFIED)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--kind", choices=KINDS, nargs="*", default=list(KINDS))
    options = parser.parse_args()
    lost = 0
    for kind in options.kind:
        for workers in options.workers:
            outcomes: Counter[str] = Counter()
            for _ in range(options.times):
                tally = asyncio.run(shut_down(kind, options.requests, workers))
                outcomes += tally.outcomes
                lost += tally.lost
            print(f"{kind:17} {workers} workers  {dict(outcomes)}", flush=True)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
