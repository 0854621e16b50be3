"""A server for S3 on loopback: moto in a process of its own, its buckets, and a door that can be shut."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

_MOTO = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(port=0, ip_address="127.0.0.1", verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
KEYS = {"AWS_ACCESS_KEY_ID": "AKIATESTS", "AWS_SECRET_ACCESS_KEY": "aSecretOfTests", "AWS_DEFAULT_REGION": "us-east-1"}
_NOTHING: Mapping[str, str] = MappingProxyType({})
_CHUNK = 1 << 16


class Bucket:
    """A bucket of a server for S3, whose URL is `url`. Raises ImportError where there is no boto3."""

    def __init__(self, url: str, name: str) -> None:
        import boto3

        self.url, self.name = url, name
        keys = {
            "aws_access_key_id": KEYS["AWS_ACCESS_KEY_ID"],
            "aws_secret_access_key": KEYS["AWS_SECRET_ACCESS_KEY"],
        }
        self.client: Any = boto3.session.Session().client("s3", endpoint_url=url, region_name="us-east-1", **keys)
        self.client.create_bucket(Bucket=name)

    @property
    def address(self) -> str:
        """Host and port, as Triton's places have them."""
        return self.url.removeprefix("http://")

    def put(self, key: str, content: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=content)

    def delete(self, *keys: str) -> None:
        for key in keys:
            self.client.delete_object(Bucket=self.name, Key=key)

    def upload(self, folder: Path, prefix: str) -> None:
        """All files in a folder."""
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                self.put(f"{prefix}/{path.relative_to(folder)}", path.read_bytes())


@contextmanager
def moto(environment: Mapping[str, str] = _NOTHING) -> Iterator[str]:
    """The URL of a server for S3."""
    process = subprocess.Popen(
        [sys.executable, "-c", _MOTO],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.strip().isdigit())
        yield f"http://127.0.0.1:{int(line)}"
    finally:
        process.kill()
        process.communicate()


class Door:
    """Passes connections on to another port of loopback. While it is shut, it breaks off each of them."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._shut = False

    async def start(self) -> int:
        """The port where it is from now on."""
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        """For good."""
        self.shut()
        if self._server is not None:
            self._server.close()

    def shut(self) -> None:
        self._shut = True
        for each in list(self._writers):
            each.transport.abort()

    def open(self) -> None:
        self._shut = False

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._shut:
            writer.transport.abort()
            return
        self._writers.add(writer)
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            await asyncio.gather(_copy(reader, back), _copy(there, writer))
        except OSError:
            writer.transport.abort()
        finally:
            self._writers.discard(writer)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the end of the connection."""
    with suppress(OSError):
        while piece := await reader.read(_CHUNK):
            writer.write(piece)
            await writer.drain()
    writer.close()
