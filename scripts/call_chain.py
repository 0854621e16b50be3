"""The calls that one inference makes, from the socket's bytes to the response's, recorded from a running server.

    python scripts/call_chain.py http            every call, indented by depth
    python scripts/call_chain.py grpc --summary  their number, the modules, and the moves between packages
    python scripts/call_chain.py --write         put the ways in and out, over both wires, into docs/design.md

The request goes to the model `simple`, whose executions are short enough to run on the event loop after a few dozen, so
that all of its way is on one thread. What a library's own code calls (uvloop, grpc, onnxruntime) is not recorded; that
of modserve which it calls back is.
"""

import argparse
import asyncio
import gc
import json
import re
import socket
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile, pairwise, takewhile
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import grpc
import module_graph
import uvloop

import modserve
from modserve.execution import inline

_REPOSITORY = Path(__file__).parents[1] / "model_repository"
_SOURCE = Path(modserve.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "design.md"
_DOOR = "InstancePool.run"
_OUTCOME = "Inflight.settle"
_WARM_UP = 100
_ATTEMPTS = 200
_STEADY = 20
"""Inferences in a row on the event loop after which they no longer wait for the end of a turn (`core.runtime.turn`)."""
_ALIKE = 3
"""Inferences of the same calls: now and then a frame of the one before comes late, and is among the calls."""
_ON_A_TIMER = str(_SOURCE / "observability" / "watchdog.py")
"""Runs now and then beside the inference, with all that it calls."""
_VALUES = struct.pack("<16i", *range(16))


@dataclass
class Recording:
    """Calls in the order in which they began: how deep each was, and the code that was called."""

    calls: list[tuple[int, CodeType]] = field(default_factory=list)
    _depth: int = 0
    _beside: int = 0
    """Calls of the timer's that have not returned."""

    def _event(self, frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if not name.startswith(str(_SOURCE)):
            return
        if self._beside or name == _ON_A_TIMER:
            self._beside = max(self._beside + (1 if event == "call" else -1 if event == "return" else 0), 0)
            return
        if event == "call":
            self.calls.append((self._depth, frame.f_code))
            self._depth += 1
        elif event == "return":
            self._depth = max(self._depth - 1, 0)

    def start(self) -> None:
        gc.disable()  # whose callbacks would be among the calls
        sys.setprofile(self._event)

    def stop(self) -> None:
        sys.setprofile(None)
        gc.enable()

    def lines(self) -> list[str]:
        return _lines(self.calls)

    def way_in(self) -> list[str]:
        """From the bytes to the pool of instances, which runs the batch on the event loop or on a thread."""
        end = next(index for index, (_, code) in enumerate(self.calls) if code.co_qualname == _DOOR)
        return _lines(self.calls[: end + 1])

    def way_out(self) -> list[str]:
        """From the outcome of the request to its bytes, maybe in a later turn of the event loop."""
        begin = next(index for index, (_, code) in enumerate(self.calls) if code.co_qualname == _OUTCOME)
        depth, rest = self.calls[begin][0], self.calls[begin + 1 :]
        inner = list(takewhile(lambda call: call[0] > depth, rest))
        lines = _lines([self.calls[begin], *inner])
        ours, before = False, {code for _, code in self.calls[:begin]}
        for depth, code in dropwhile(lambda call: call[0] > 0, rest[len(inner) :]):
            if not depth:
                ours = code in before  # a coroutine that goes on, and nobody's timer
            if ours:
                lines += [f"{'  ' * depth}{line}" for line in _lines([(0, code)])]
        return lines

    @property
    def engine(self) -> int:
        """The place of the engine's call; 0 if it was made on another thread."""
        places = (index for index, (_, code) in enumerate(self.calls) if _module(code).startswith("backends/"))
        return next(places, 0)

    def summary(self) -> str:
        """The numbers by which one version is compared with another."""
        floors = module_graph.floors(module_graph.imports(_SOURCE))
        packages = [_module(code).split("/")[0].removesuffix(".py") for _, code in self.calls]
        moves = [(one, other) for one, other in pairwise(packages) if one != other]
        inward = list(pairwise(packages[: self.engine]))
        return (
            f"{len(self.calls)} calls in {len({code.co_filename for _, code in self.calls})} modules, "
            f"{sum(not depth for depth, _ in self.calls)} of them by the event loop; "
            f"{len(moves)} moves between packages, {_climbs(moves, floors)} of them up "
            f"({_climbs(inward, floors)} on the way to the engine)"
        )


def _lines(calls: Sequence[tuple[int, CodeType]]) -> list[str]:
    outermost = min((depth for depth, _ in calls), default=0)
    return [f"{'  ' * (depth - outermost)}{code.co_qualname}  {_module(code)}" for depth, code in calls]


def renewed(page: str, recordings: Mapping[str, Recording]) -> str:
    """A page with the ways in and out as they were recorded, each in the block of code behind its comment."""
    for wire, recording in recordings.items():
        for name, lines in (("in", recording.way_in()), ("out", recording.way_out())):
            block = rf"(<!-- {wire}, the way {name} -->\n\n```\n).*?(```)"
            text = "".join(f"{line}\n" for line in lines)
            page = re.sub(block, lambda match, text=text: f"{match[1]}{text}{match[2]}", page, flags=re.DOTALL)  # type: ignore[misc]
    return page


def _climbs(moves: list[tuple[str, str]], floors: dict[str, int]) -> int:
    return sum(floors[other] > floors[one] for one, other in moves)


def _module(code: CodeType) -> str:
    return str(Path(code.co_filename).relative_to(_SOURCE))


class _HttpClient:
    def __init__(self, ports: modserve.Ports) -> None:
        assert ports.http is not None
        self._socket = socket.create_connection(("127.0.0.1", ports.http))
        tensor = {"datatype": "INT32", "shape": [1, 16], "parameters": {"binary_data_size": 64}}
        head = json.dumps(
            {
                "inputs": [{"name": name, **tensor} for name in ("INPUT0", "INPUT1")],
                "outputs": [{"name": name, "parameters": {"binary_data": True}} for name in ("OUTPUT0", "OUTPUT1")],
            }
        ).encode()
        body = head + _VALUES * 2
        lines = (
            "POST /v2/models/simple/infer HTTP/1.1",
            "Host: 127.0.0.1",
            f"Inference-Header-Content-Length: {len(head)}",
            f"Content-Length: {len(body)}",
        )
        self._message = "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    def infer(self) -> None:
        self._socket.sendall(self._message)
        received = self._socket.recv(65536)
        assert received.startswith(b"HTTP/1.1 200"), received

    def close(self) -> None:
        self._socket.close()


class _GrpcClient:
    def __init__(self, ports: modserve.Ports) -> None:
        from modserve.pb import inference as pb

        self._channel = grpc.insecure_channel(f"127.0.0.1:{ports.grpc}")
        self._call = self._channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", None, None)
        tensor = pb.ModelInferRequest.InferInputTensor
        self._message = pb.ModelInferRequest(
            model_name="simple",
            inputs=[tensor(name=name, datatype="INT32", shape=[1, 16]) for name in ("INPUT0", "INPUT1")],
            raw_input_contents=[_VALUES, _VALUES],
        ).SerializeToString()

    def infer(self) -> None:
        assert self._call(self._message)

    def close(self) -> None:
        self._channel.close()


_CLIENTS: dict[str, Any] = {"http": _HttpClient, "grpc": _GrpcClient}


async def record(wire: str) -> Recording:
    """Serve the example models, and record one inference over `wire`, "http" or "grpc".

    A busy machine makes executions look long, and they go to a thread for a while. Here none is long.
    """
    inline.LONG_NS = inline._QUICK_NS = inline._WAIT_NS = sys.maxsize
    loop, recording = asyncio.get_running_loop(), Recording()
    opened: list[modserve.Ports] = []
    loaded = asyncio.Event()
    settings = modserve.Settings(
        model_repository=(_REPOSITORY,), http_port=0, grpc_port=0, allow_metrics=False, http_address="127.0.0.1"
    )
    serving = loop.create_task(modserve.serve(settings, on_open=opened.append, on_loaded=lambda server: loaded.set()))
    await loaded.wait()

    def on_loop(function: Callable[[], None]) -> None:
        done = threading.Event()
        loop.call_soon_threadsafe(function)
        loop.call_soon_threadsafe(done.set)
        done.wait()

    def ask() -> None:
        client, seen, steady = _CLIENTS[wire](opened[0]), Counter[str](), 0
        for _ in range(_WARM_UP):
            client.infer()
        for _ in range(_ATTEMPTS):
            recording.calls.clear()
            on_loop(recording.start)
            client.infer()
            on_loop(recording.stop)
            steady = steady + 1 if recording.engine else 0
            if steady > _STEADY:
                calls = "\n".join(recording.lines())
                seen[calls] += 1
                if seen[calls] == _ALIKE:
                    break
        client.close()

    await asyncio.to_thread(ask)
    serving.cancel()
    await asyncio.wait([serving])
    return recording


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wire", nargs="?", choices=_CLIENTS, default="http")
    parser.add_argument("--summary", action="store_true", help="print numbers in place of the calls")
    parser.add_argument("--ways", action="store_true", help="print the ways in and out alone")
    parser.add_argument("--write", action="store_true", help="renew docs/design.md")
    arguments = parser.parse_args()
    if arguments.write:
        recordings = {wire: uvloop.run(record(wire)) for wire in _CLIENTS}
        PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8"), recordings), encoding="utf-8")
        return
    recording = uvloop.run(record(arguments.wire))
    if arguments.summary:
        print(recording.summary())
    else:
        print("\n".join([*recording.way_in(), *recording.way_out()] if arguments.ways else recording.lines()))


if __name__ == "__main__":
    main()
