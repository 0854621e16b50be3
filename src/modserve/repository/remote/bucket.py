"""Contents and files of a bucket of S3, Google Cloud Storage or Azure. The library is obstore.

Makes obstore's client for a bucket.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from modserve.core.files.remote_place import RemotePlace
from modserve.core.pip_command import pip_install
from modserve.core.version import may_be_model

from .credentials import Credentials, credentials_of, s3_access
from .failures import broken, reason, unreadable, unwritten
from .repository import Contents
from .transfer import Download, ModelFiles, OnBytes, RemoteFile, Transfer, beside, identity, models_of, refusal, trick

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_MOST_WORDS = 200


def open_store(place: RemotePlace, timeout_s: float) -> "ObjectStore":
    """Open a bucket. Blocking. Raises INVALID_ARG if the library, a profile or a credential file cannot be used."""
    try:
        from obstore.store import AzureStore, GCSStore, S3Store
    except ImportError as error:
        raise unreadable(place, f"this needs the library obstore: {pip_install('remote')}") from error
    known = credentials_of(place)
    config: dict[str, Any]
    provider: dict[str, Any] = {}
    if place.scheme == "s3":
        access = s3_access(place, known)
        endpoint = place.endpoint or os.environ.get("AWS_ENDPOINT_URL_S3", "")
        config = {**access.config, **({"endpoint": endpoint} if endpoint else {})}
        provider = {} if access.provider is None else {"credential_provider": access.provider}
    elif place.scheme == "gs":
        config = {"application_credentials": known["path"]} if "path" in known else {}
    else:
        config = _azure(place, known)
    kinds: dict[str, Callable[..., ObjectStore]] = {"s3": S3Store, "gs": GCSStore, "as": AzureStore}
    try:
        return kinds[place.scheme](place.bucket, config=config, **provider, **_patience(timeout_s))
    except Exception as error:
        raise unreadable(place, f"its client cannot be made: {_harmless(error)}") from error


def _azure(place: RemotePlace, known: Credentials) -> dict[str, str]:
    names = {"account_str": "account_name", "account_key": "account_key", "client_id": "client_id"}
    config = {"account_name": place.account} | {names[name]: known[name] for name in names if name in known}
    if known.get("auth_type") == "managed_identity":
        config["credential_type"] = "managed_identity"
    return config


def _patience(timeout_s: float) -> dict[str, Any]:
    client = {
        "allow_http": True,
        "connect_timeout": timedelta(seconds=timeout_s),
        "read_timeout": timedelta(seconds=timeout_s),
        "timeout": timedelta(days=7),  # of a whole download; one that stands still ends by the time-out before
    }
    backoff = {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=2), "base": 2}
    retries = {"max_retries": 2, "retry_timeout": timedelta(seconds=2 * timeout_s), "backoff": backoff}
    return {"client_options": client, "retry_config": retries}


def _harmless(error: Exception) -> str:
    """Return the first line of a library's text, if no secret of the environment is in it."""
    line = str(error).partition("\n")[0]
    secrets = [value for name, value in os.environ.items() if _SECRET.search(name) and value]
    harmless = len(line) <= _MOST_WORDS and not any(value in line for value in secrets)
    return line if harmless else type(error).__name__


_CHUNK_BYTES = 4 << 20
_LOOKS_AT_A_TIME = 8
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Bucket:
    """Implements `source.RemoteSource`. `open` makes the client; it may block and raise."""

    def __init__(
        self,
        place: RemotePlace,
        transfer: Transfer,
        open: "Callable[[RemotePlace, float], ObjectStore]" = open_store,
    ) -> None:
        self._place = place
        self._transfer = transfer
        self._open = open
        self._store: ObjectStore | None = None
        self._server = place.endpoint or os.environ.get("AWS_ENDPOINT_URL", "")

    async def _connect(self) -> "ObjectStore":
        if self._store is None:
            self._store = await self._transfer.blocking(self._open, self._place, self._transfer.patience.timeout_s)
        return self._store

    async def names(self) -> Collection[str]:
        store = await self._connect()
        import obstore

        try:
            async with asyncio.timeout(self._listing_s):
                result = await obstore.list_with_delimiter_async(store, self._place.prefix or None)
        except Exception as error:
            raise self._unreadable(error) from error
        names = {prefix.rstrip("/").rpartition("/")[2] for prefix in result["common_prefixes"]}
        return {name for name in names if may_be_model(name) and not trick(name)}

    async def look(self, names: Collection[str] | None) -> Contents:
        if names is None:
            files = await self._list("")
            if files is not None:
                models = models_of(files)
                return Contents(models, beside(files, models))
            names = await self.names()  # a key of one of them is no path
            return Contents(await self._each(names))
        return Contents(await self._each([name for name in names if "/" not in name and not trick(name)]))

    async def _each(self, names: Collection[str]) -> Mapping[str, ModelFiles]:
        slots = asyncio.Semaphore(_LOOKS_AT_A_TIME)

        async def one(name: str) -> ModelFiles | None:
            async with slots:
                files = await self._list(name)
            if files is None:
                problem = refusal("it has a part that is empty, '.' or '..'")
                return ModelFiles(name, problem=problem)
            return models_of(files).get(name)

        looks = await asyncio.gather(*(one(name) for name in sorted(names)))
        return {model.name: model for model in looks if model is not None}

    async def _list(self, name: str) -> list[RemoteFile] | None:
        """List the files of one model, of all for the empty name; None if a key among them is no path."""
        import obstore
        from obstore.exceptions import InvalidPathError

        prefix = self._key(name)
        store = await self._connect()
        try:
            async with asyncio.timeout(self._listing_s):
                listed = await obstore.list(store, prefix or None, chunk_size=1000).collect_async()
        except InvalidPathError:
            return None
        except Exception as error:
            raise self._unreadable(error) from error
        return [self._file(meta) for meta in listed]

    @property
    def _listing_s(self) -> float:
        return 6 * self._transfer.patience.timeout_s

    def _unreadable(self, error: Exception) -> Exception:
        why, transient = reason(error, self._place)
        return unreadable(self._place, why, transient=transient)

    def _file(self, meta: "ObjectMeta") -> RemoteFile:
        key, mark = meta["path"], _mark(meta)
        path = key[len(self._place.prefix) :].removeprefix("/") if self._place.prefix else key
        source = identity(self._place.scheme, self._server, self._place.account, self._place.bucket, key, mark)
        return RemoteFile(path, meta["size"], mark, source)

    async def write(self, path: str, content: bytes) -> None:
        import obstore

        store, key = await self._connect(), self._key(path)
        try:
            async with asyncio.timeout(self._listing_s):
                if content:
                    await obstore.put_async(store, key, content)
                else:
                    await obstore.delete_async(store, key)
        except FileNotFoundError:  # some stores say so of what is deleted already
            return
        except Exception as error:
            raise unwritten(self._place, path, reason(error, self._place, writing=True)[0]) from error

    def _key(self, path: str) -> str:
        return "/".join(filter(None, (self._place.prefix, path)))

    async def bring(self, file: RemoteFile, on_bytes: OnBytes) -> str:
        async def open_at(offset: int) -> Download:
            return await self._read(file, offset)

        return await self._transfer.bring(self._place, file, open_at, on_bytes)

    async def _read(self, file: RemoteFile, offset: int) -> Download:
        import obstore

        key = self._key(file.path)
        options: Any = {"range": {"offset": offset}} if offset else None
        store = await self._connect()
        try:
            result = await obstore.get_async(store, key, options=options)
            meta, said = result.meta, str(result.attributes.get("sha256", "")).lower()
        except Exception as error:
            raise self._broken(error, file) from error

        async def blocks() -> AsyncIterator[bytes]:
            try:
                async for block in result.stream(min_chunk_size=_CHUNK_BYTES):
                    yield bytes(block)
            except Exception as error:
                raise self._broken(error, file) from error

        return Download(meta["size"], _mark(meta), said if _SHA256.fullmatch(said) else "", blocks())

    def _broken(self, error: Exception, file: RemoteFile) -> Exception:
        why, transient = reason(error, self._place)
        return broken(self._place, file.path, why, transient=transient)


def _mark(meta: "ObjectMeta") -> str:
    """Return the ETag without quotes, as Azure's listings have it, and its responses do not."""
    tag = (meta["e_tag"] or "").removeprefix("W/").strip('"')
    return tag or meta["version"] or meta["last_modified"].isoformat()
