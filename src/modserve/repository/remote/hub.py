"""A model of the Hugging Face Hub as a repository: its snapshot is version 1. Only the standard library is needed.

Of the many forms in which such a repository has its weights, one is fetched: what an engine here reads.
"""

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from typing import Any, Final
from urllib.parse import quote

from modserve.core.files.remote_place import RemotePlace

from .failures import StoreError, broken, reason, unreadable, unwritten
from .repository import Contents
from .transfer import Download, ModelFiles, OnBytes, RemoteFile, Transfer, identity, models_of, trick

SERVER: Final = "https://huggingface.co"

_BLOCK_BYTES = 1 << 20
_MOST_LISTING = 64 << 20
_MODELS: Final = ("model.onnx", "onnx/model.onnx", "openvino_model.xml", "openvino/openvino_model.xml")
"""The files that are models, the best first."""
_SMALL: Final = (".json", ".txt", ".model", ".jinja", ".pbtxt")
"""Tokenizers, configurations, templates. Code is never fetched."""
_CONFIG: Final = "config.pbtxt"
_PARTIAL = 206
_VERSION = 1


class HubModel:
    """Implements `source.RemoteSource`."""

    def __init__(self, place: RemotePlace, transfer: Transfer) -> None:
        self._place = place
        self._transfer = transfer
        self._name = place.bucket.rpartition("/")[2]
        self._server = (os.environ.get("HF_ENDPOINT") or SERVER).rstrip("/")
        self._commit = ""
        """Commit of the latest look: files are fetched as they were listed."""
        self._digests: dict[str, str] = {}
        """SHA-256 by path, of the files that the hub keeps as large ones."""

    async def names(self) -> Collection[str]:
        return [self._name]

    async def look(self, names: Collection[str] | None) -> Contents:
        if names is not None and self._name not in names:
            return Contents({})
        listing = await self._transfer.blocking(self._list)
        self._commit = listing["sha"]
        siblings = list(_siblings(listing))
        chosen = select_files(path for path, *_ in siblings)
        files, digests = [], {}
        for path, size, mark, digest in siblings:
            if path in chosen:
                below = path if path == _CONFIG else f"{_VERSION}/{path}"
                source = identity("hf", self._server, self._place.bucket, path, mark, size)
                files.append(RemoteFile(f"{self._name}/{below}", size, mark, source))
                digests[f"{self._name}/{below}"] = digest
        self._digests = digests
        model = models_of(files).get(self._name) or ModelFiles(self._name)
        if not chosen & {*_MODELS} and not any(path.endswith(".gguf") for path in chosen):
            model.problem = f"the model has none of the files {', '.join(_MODELS)}"
        return Contents({self._name: model})

    async def write(self, path: str, content: bytes) -> None:
        raise unwritten(self._place, path, "no server writes to the hub")

    async def bring(self, file: RemoteFile, on_bytes: OnBytes) -> str:
        async def open_at(offset: int) -> Download:
            return await self._read(file, offset)

        return await self._transfer.bring(self._place, file, open_at, on_bytes)

    def _list(self) -> dict[str, Any]:
        """Return the hub's listing of the model. Blocking. Raises StoreError."""
        url = f"{self._server}/api/models/{self._place.bucket}/revision/{quote(self._place.prefix, safe='')}?blobs=true"
        try:
            with self._request(url) as response:
                listing = json.loads(response.read(_MOST_LISTING))
            if not isinstance(listing.get("sha"), str) or not isinstance(listing.get("siblings"), list):
                raise ValueError("it lists no files")
        except (urllib.error.URLError, OSError, http.client.HTTPException) as error:
            why, transient = self._reason(error)
            raise unreadable(self._place, why, transient=transient) from None
        except (ValueError, AttributeError) as error:
            raise unreadable(self._place, f"the answer of {self._server} is not that of the hub ({error})") from None
        return dict(listing)

    async def _read(self, file: RemoteFile, offset: int) -> Download:
        path = file.path.removeprefix(f"{self._name}/").removeprefix(f"{_VERSION}/")
        url = f"{self._server}/{self._place.bucket}/resolve/{self._commit}/{quote(path)}"
        try:
            response = await self._transfer.blocking(self._request, url, offset)
            skipped = offset if response.status == _PARTIAL else 0
            size = skipped + int(response.headers.get("Content-Length") or file.size - skipped)
            if offset > skipped:
                await self._transfer.blocking(response.read, offset)
        except (urllib.error.URLError, OSError, http.client.HTTPException) as error:
            raise self._broken(file, error) from None

        async def blocks() -> AsyncIterator[bytes]:
            try:
                while block := await self._transfer.blocking(response.read, _BLOCK_BYTES):
                    yield block
            except (OSError, http.client.HTTPException) as error:
                raise self._broken(file, error) from None
            finally:
                response.close()

        return Download(size, file.mark, self._digests.get(file.path, ""), blocks())

    def _request(self, url: str, offset: int = 0) -> Any:
        request = urllib.request.Request(url, headers={"Accept-Encoding": "identity", "User-Agent": "modserve"})
        if token := os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN"):
            request.add_unredirected_header("Authorization", f"Bearer {token}")  # large files are on other servers
        if offset:
            request.add_header("Range", f"bytes={offset}-")
        return urllib.request.urlopen(request, timeout=self._transfer.patience.timeout_s)

    def _broken(self, file: RemoteFile, error: Exception) -> StoreError:
        why, transient = self._reason(error)
        return broken(self._place, file.path, why, transient=transient)

    def _reason(self, error: Exception) -> tuple[str, bool]:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
            return reason(Exception(f"status code: {error.code}"), self._place)
        if isinstance(error, urllib.error.URLError):
            cause = error.reason
            return reason(cause if isinstance(cause, Exception) else Exception(str(cause)), self._place)
        return reason(error, self._place)


def select_files(paths: Iterable[str]) -> set[str]:
    """Select files to fetch: the first of the models with its weights, or the only GGUF file, and all small ones."""
    every = {path for path in paths if not trick(path) and not path.startswith(".")}
    chosen = {path for path in every if path.endswith(_SMALL) and path.count("/") <= 1}
    model = next((each for each in _MODELS if each in every), "")
    if model.endswith(".onnx"):
        chosen |= {path for path in every if path == model or path.startswith((f"{model}_data", f"{model}.data"))}
    elif model:
        chosen |= {model, f"{model.removesuffix('.xml')}.bin"} & every
    else:
        single = [path for path in every if path.endswith(".gguf")]
        chosen |= {*single} if len(single) == 1 else set()
    return chosen


def _siblings(listing: dict[str, Any]) -> Iterator[tuple[str, int, str, str]]:
    """Yield path, size, mark and SHA-256 of each file; what is not as the hub writes it is left out."""
    for each in listing["siblings"]:
        if not isinstance(each, dict):
            continue
        path, size, blob, large = each.get("rfilename"), each.get("size"), each.get("blobId"), each.get("lfs")
        digest = large.get("sha256") if isinstance(large, dict) else ""
        if isinstance(path, str) and isinstance(size, int) and isinstance(blob, str) and isinstance(digest, str):
            yield path, size, digest or blob, digest
