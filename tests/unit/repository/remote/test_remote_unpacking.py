"""Archives: what comes out of them, and what must not."""

import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from modserve.repository.remote import archive
from modserve.repository.remote.archive import ArchiveError, Manifest, unpack
from modserve.repository.remote.cache import DownloadCache

MODEL = {"m/config.pbtxt": b"config", "m/1/model.onnx": b"one", "m/2/": b"", "n/1/model.onnx": b"one"}


def tar(files: Mapping[str, bytes | tarfile.TarInfo], mode: str = "w:gz") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            if name.endswith("/"):
                info.type = tarfile.DIRTYPE
            data = content if isinstance(content, bytes) else b""
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def zipped(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def zipped_otherwise(kind: int) -> bytes:
    """A zip whose data is damaged, with a kind of compression."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", kind) as archive:
        archive.writestr("m/1/model.onnx", bytes(range(256)) * 100)
    content = bytearray(packed.getvalue())
    start = content.index(b"model.onnx") + len(b"model.onnx")
    content[start + 20 : start + 60] = bytes(40)
    return bytes(content)


def with_another_checksum(content: bytes) -> bytes:
    """Data of gzip that is whole, but for the CRC behind it."""
    return content[:-8] + bytes(each ^ 0xFF for each in content[-8:-4]) + content[-4:]


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.fixture
def cache(tmp_path: Path) -> DownloadCache:
    return DownloadCache(tmp_path)


def unpacked(cache: DownloadCache, content: bytes, name: str = "x.tar.gz") -> Manifest:
    return unpack(io.BytesIO(content), len(content), name, cache)


def paths(manifest: Manifest) -> set[str]:
    return {path for path, _, _ in manifest.files} | {f"{path}/" for path in manifest.folders}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.tar.gz", tar(MODEL)),
        ("x.tgz", tar({f"./{name}": content for name, content in MODEL.items()})),
        ("x.tar", tar(MODEL, "w")),
        ("x.zip", zipped(MODEL)),
        ("X.ZIP", zipped({f"models/{name}": content for name, content in MODEL.items()})),
        ("x.tar.gz", tar({"models/": b""} | {f"models/{name}": content for name, content in MODEL.items()})),
    ],
    ids=["tar.gz", "tgz with dots", "tar", "zip", "zip of a folder", "tar.gz of a folder"],
)
def test_archives(cache: DownloadCache, name: str, content: bytes) -> None:
    manifest = unpacked(cache, content, name)
    assert paths(manifest) == set(MODEL)
    digests = {path: digest for path, _, digest in manifest.files}
    assert digests["m/1/model.onnx"] == digests["n/1/model.onnx"]
    assert cache.content(digests["m/config.pbtxt"]).read_bytes() == b"config"
    assert manifest.problems == {}


@pytest.mark.parametrize("folder", ["m", "m/1"])
def test_an_archive_of_one_model(cache: DownloadCache, folder: str) -> None:
    files = {name: content for name, content in MODEL.items() if name.startswith(folder)}
    assert paths(unpacked(cache, tar(files))) == set(files)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "m/../../x/y", "a\\b/1/x"])
@pytest.mark.parametrize("kind", ["x.tar.gz", "x.zip"])
def test_paths_that_lead_out_of_it(cache: DownloadCache, name: str, kind: str) -> None:
    files = {**MODEL, name: b"x"}
    content = zipped(files) if kind == "x.zip" else tar(files)
    if name.startswith("m/"):
        assert "rename or delete it" in unpacked(cache, content, kind).problems["m"]
        return
    with pytest.raises(ArchiveError, match="leads out of it"):
        unpacked(cache, content, kind)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices(cache: DownloadCache, kind: bytes) -> None:
    manifest = unpacked(cache, tar({**MODEL, "m/1/link": link("m/1/link", "/etc/passwd", kind)}))
    assert manifest.problems == {"m": "'m/1/link' in the archive is a link or a device, not a file"}
    assert paths(manifest) == set(MODEL)


def test_a_link_in_a_zip(cache: DownloadCache) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        info = zipfile.ZipInfo("m/1/link")
        info.create_system, info.external_attr = 3, 0o120777 << 16
        archive.writestr(info, "/etc/passwd")
        archive.writestr("n/1/x", b"x")
    manifest = unpacked(cache, packed.getvalue(), "x.zip")
    assert manifest.problems == {"m": "'m/1/link' in the archive is a link or a device, not a file"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.zip", b"no zip"),
        ("x.tar.gz", b"no tar"),
        ("x.tar.gz", tar({"m/1/x": bytes(range(256)) * 1000})[:-300]),
        ("x.zip", zipped(MODEL)[:-40]),
        ("x.zip", zipped(MODEL).replace(b"config", b"CONFIG", 1)[:-1]),
        ("x.tar.gz", b""),
        ("x.zip", zipped_otherwise(zipfile.ZIP_LZMA)),
        ("x.zip", zipped_otherwise(zipfile.ZIP_BZIP2)),
        ("x.tar.gz", with_another_checksum(tar(MODEL))),
        ("x.tar.gz", tar(MODEL)[:-4]),
        ("x.tar.xz", tar(MODEL, "w:xz")[:-12]),
        ("x.tar.bz2", tar(MODEL, "w:bz2")[:-12]),
    ],
)
def test_archives_that_are_damaged(cache: DownloadCache, name: str, content: bytes) -> None:
    with pytest.raises(ArchiveError, match="it is damaged"):
        unpacked(cache, content, name)
    assert [path for path in (cache.root / "incoming").glob("*") if path.stat().st_size] == []


@pytest.mark.parametrize("name", ["x.zip", "x.tar.gz"])
def test_archives_that_swell(cache: DownloadCache, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_LEAST_LIMIT", 1000)
    files = {"m/1/zeros": bytes(10 << 20)}
    content = zipped(files) if name == "x.zip" else tar(files)
    with pytest.raises(ArchiveError, match="more than 100 times its size"):
        unpacked(cache, content, name)


def test_archives_of_many_entries(cache: DownloadCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_MOST_ENTRIES", 3)
    with pytest.raises(ArchiveError, match="more than 3 entries"):
        unpacked(cache, tar(MODEL))
