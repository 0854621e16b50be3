"""Digests, code and files that change: what is refused before, while and after an engine opens a model."""

import asyncio
import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modserve.backends.api import ModelSource
from modserve.backends.registry import BackendRegistry
from modserve.core.errors import Code, ModserveError, invalid
from modserve.models.loading.integrity import Guard
from modserve.models.loading.loader import Loader, LoaderOptions
from modserve.repository.local import LocalRepository
from modserve.testing import PuppetBackend, write_model

CONFIG = """\
backend: "puppet"
default_model_filename: "weights"
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 4 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 4 ] } ]
"""


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


LOOSE, STRICT = Guard(), Guard(require_digests=True)


class Writer(PuppetBackend):
    """An engine during whose loads something happens to the files."""

    meanwhile: Callable[[], object] = staticmethod(lambda: None)
    code = ""

    def code_in(self, config: object, path: Path) -> str:
        return self.code

    def open(self, source: ModelSource) -> Any:
        self.meanwhile()
        return super().open(source)


class Bench:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.backend = Writer()
        self.model = write_model(root, "model", CONFIG, ("1", "2"))
        self.files = ("config.pbtxt", "1/weights", "2/weights", "labels.txt")
        for file in self.files[1:]:
            (self.model / file).write_bytes(file.encode())

    def list(self, folder: Path, *paths: str, prefix: str = "") -> None:
        lines = [f"{sha256((self.model / path).read_bytes())}  {prefix}{path}\n" for path in paths]
        (folder / "SHA256SUMS").write_text("".join(lines))

    def load(
        self, guard: Guard = LOOSE, version: int = 1, config: str | None = None, place: Path | None = None
    ) -> None:
        """Load a version, of its directory or of another `place`, and close it again. Raises what the load raises."""
        with ThreadPoolExecutor(1) as executor:
            loader = Loader(BackendRegistry({"puppet": self.backend}), LoaderOptions(4, guard=guard), executor)
            listing = replace(LocalRepository(self.root).read("model"), config=config)

            async def load() -> None:
                blueprint = await loader.inspect(replace(listing, versions=(version,)))
                await (await blueprint.load(place or listing.path, version)).close()

            asyncio.run(load())

    def refusal(
        self, guard: Guard = LOOSE, version: int = 1, config: str | None = None, place: Path | None = None
    ) -> ModserveError:
        with pytest.raises(ModserveError) as caught:
            self.load(guard, version, config, place)
        assert (self.backend.open_models, self.backend.open_instances) == (0, 0)
        return caught.value


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "models")


# Digests


def test_without_a_list_nothing_is_checked(bench: Bench) -> None:
    bench.load()


@pytest.mark.parametrize("place", ["model", "repository"])
def test_a_list_that_all_files_keep(bench: Bench, place: str) -> None:
    if place == "model":
        bench.list(bench.model, *bench.files, prefix="./")
    else:
        bench.list(bench.root, *bench.files, prefix="model/")
    bench.load(STRICT)
    bench.load(STRICT, 2)


@pytest.mark.parametrize("place", ["model", "repository", "version"])
def test_a_file_with_another_digest(bench: Bench, place: str) -> None:
    folder = {"model": bench.model, "repository": bench.root, "version": bench.model / "1"}[place]
    prefix = {"model": "", "repository": "model/", "version": ""}[place]
    path = "weights" if place == "version" else "1/weights"
    (folder / "SHA256SUMS").write_text(f"{'0' * 64}  {prefix}{path}\n")
    error = bench.refusal()
    assert error.code is Code.INVALID_ARG
    assert error.message == (
        f"model 'model' is not loaded: mismatched SHA256 of '{bench.model}/1/weights': expected {'0' * 64}, got "
        f"{sha256(b'1/weights')}, says '{folder}/SHA256SUMS'"
    )
    assert bench.backend.sources == []  # it was never opened
    bench.load(version=2)  # whose files are as they should be


def test_a_file_that_is_gone_and_one_that_is_none(bench: Bench) -> None:
    bench.list(bench.model, "1/weights")
    (bench.model / "1" / "weights").unlink()
    assert "there is no such file; expected a file with the SHA256" in bench.refusal().message
    (bench.model / "1" / "weights").mkdir()
    assert "there is no such file" in bench.refusal().message


def test_a_list_that_is_none(bench: Bench) -> None:
    (bench.model / "SHA256SUMS").write_text("not a list\n")
    assert f"{bench.model}/SHA256SUMS:1: expected a line of sha256sum" in bench.refusal().message
    (bench.model / "SHA256SUMS").unlink()
    (bench.model / "SHA256SUMS").mkdir()
    assert "cannot read" in bench.refusal().message


def test_a_configuration_that_was_changed(bench: Bench) -> None:
    bench.list(bench.model, "config.pbtxt")
    (bench.model / "config.pbtxt").write_text(CONFIG + "max_batch_size: 8\n")
    assert "mismatched SHA256 of" in bench.refusal().message


def test_a_configuration_that_was_read_before_it_was_put_right(bench: Bench) -> None:
    """The digest is that of the file as it is now, and the server would act on what it was."""
    bench.list(bench.model, "config.pbtxt")
    good = (bench.model / "config.pbtxt").read_bytes()
    (bench.model / "config.pbtxt").write_text(CONFIG + "max_batch_size: 8\n")
    with ThreadPoolExecutor(1) as executor:
        loader = Loader(BackendRegistry({"puppet": bench.backend}), LoaderOptions(4), executor)
        listing = LocalRepository(bench.root).read("model")
        (bench.model / "config.pbtxt").write_bytes(good)

        async def load() -> None:
            await (await loader.inspect(listing)).load(listing.path, 1)

        with pytest.raises(ModserveError, match="it changed while it was read"):
            asyncio.run(load())


def test_digests_are_required(bench: Bench) -> None:
    message = bench.refusal(STRICT).message
    assert "runs with --require-digests: there is no SHA256 digest of: 1/weights, config.pbtxt, labels.txt\n" in message
    assert f"cd {bench.model} && find . -type f ! -name SHA256SUMS -exec sha256sum {{}} + > SHA256SUMS" in message
    bench.list(bench.model, "config.pbtxt", "1/weights", "2/weights")
    assert "no SHA256 digest of: labels.txt\n" in bench.refusal(STRICT).message
    bench.list(bench.model, *bench.files)
    (bench.model / "1" / "__pycache__").mkdir()
    (bench.model / "1" / "__pycache__" / "model.pyc").touch()
    assert "no SHA256 digest of: 1/__pycache__/model.pyc\n" in bench.refusal(STRICT).message


def agent(**digests: str) -> str:
    parameters = " ".join(f"parameters {{ key: '{key}:1/weights' value: '{value}' }}" for key, value in digests.items())
    return f"model_repository_agents {{ agents {{ name: 'checksum' {parameters} }} }}\n"


def test_tritons_agent(bench: Bench) -> None:
    content = b"1/weights"
    config = bench.model / "config.pbtxt"
    config.write_text(CONFIG + agent(MD5=hashlib.md5(content).hexdigest(), SHA512=hashlib.sha512(content).hexdigest()))
    bench.load()
    config.write_text(CONFIG + agent(MD5="0" * 32))
    message = bench.refusal().message
    assert f"mismatched MD5 of '{bench.model}/1/weights': expected {'0' * 32}" in message
    assert message.endswith("says the checksum agent in the configuration")


def test_only_strong_digests_of_the_repositorys_own_suffice(bench: Bench) -> None:
    content = b"1/weights"
    (bench.model / "labels.txt").unlink()
    config = bench.model / "config.pbtxt"
    config.write_text(CONFIG + agent(MD5=hashlib.md5(content).hexdigest()))
    assert "no SHA256 digest of: 1/weights, config.pbtxt" in bench.refusal(STRICT).message
    config.write_text(CONFIG + agent(SHA256=sha256(content)))
    bench.list(bench.root, "config.pbtxt", prefix="model/")
    bench.load(STRICT)
    override = (
        '{"backend": "puppet", "default_model_filename": "weights", "input": [{"name": "IN", "data_type": "TYPE_INT32",'
        '"dims": [4]}], "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": [4]}], "model_repository_agents":'
        '{"agents": [{"name": "checksum", "parameters": {"SHA256:1/weights": "' + sha256(content) + '"}}]}}'
    )
    bench.load(config=override)
    assert "no SHA256 digest of: 1/weights\n" in bench.refusal(STRICT, config=override).message


# Code


def test_code_is_denied(bench: Bench) -> None:
    bench.backend.code = "it is a program"
    bench.load()
    message = bench.refusal(Guard(deny_code=True)).message
    assert message == "model 'model' is not loaded, since the server runs with --deny-code: it is a program"
    bench.backend.code = ""
    bench.load(Guard(deny_code=True))


def test_backends_that_do_not_say_are_denied(bench: Bench) -> None:
    bench.backend.code_in = None  # type: ignore[method-assign, assignment]
    bench.load()
    assert "backend 'puppet' does not say whether it runs code" in bench.refusal(Guard(deny_code=True)).message


# Files that change


def test_a_file_that_changes_while_it_is_read(bench: Bench) -> None:
    weights = bench.model / "1" / "weights"
    bench.backend.meanwhile = lambda: weights.write_text("more and more")
    error = bench.refusal()
    assert error.code is Code.UNAVAILABLE
    assert f"model 'model' version 1 is not loaded: '{weights}' has changed while it was read; load it again" in (
        error.message
    )
    bench.backend.meanwhile = lambda: None
    bench.load()


def test_what_an_engine_says_of_a_half_copied_file_is_not_the_reason(bench: Bench) -> None:
    weights = bench.model / "1" / "weights"
    bench.backend.meanwhile = lambda: weights.write_text("more")
    bench.backend.fail_to_open = invalid("the file is cut off")
    assert "has changed while it was read" in bench.refusal().message


def test_a_file_that_is_replaced_or_goes(bench: Bench) -> None:
    data = bench.model / "1" / "data.bin"
    data.touch()
    (bench.root / "new").touch()
    bench.backend.meanwhile = lambda: (bench.root / "new").rename(data)
    assert f"'{data}' has changed" in bench.refusal().message
    bench.backend.meanwhile = data.unlink
    assert f"'{data}' is gone" in bench.refusal().message


def test_new_files_do_not_matter(bench: Bench) -> None:
    bench.backend.meanwhile = (bench.model / "1" / "cache").touch
    bench.load()


def test_what_a_program_writes_beside_itself_does_not_matter(bench: Bench) -> None:
    beside = bench.model / "1" / "counter"
    beside.touch()
    bench.backend.code = "it is a program"
    bench.backend.meanwhile = lambda: beside.write_text("1")
    bench.load()
    bench.backend.meanwhile = lambda: (bench.model / "1" / "weights").write_text("another program")
    assert "has changed while it was read" in bench.refusal().message


def test_a_folder_that_is_a_model_counts_as_a_whole(bench: Bench) -> None:
    weights = bench.model / "1" / "weights"
    weights.unlink()
    (weights / "variables").mkdir(parents=True)
    inner = weights / "variables" / "data"
    inner.touch()
    bench.backend.meanwhile = lambda: inner.write_text("1")
    assert f"'{inner}' has changed" in bench.refusal().message


def test_the_folder_of_a_file_without_a_repository_is_somebody_elses(bench: Bench, tmp_path: Path) -> None:
    folder = tmp_path / "anybody"
    (bench.model / "1").rename(folder)
    log, side = folder / "log", folder / "weights.bin"
    for each in (log, side):
        each.touch()
    alone = bench.root / "alone"
    alone.mkdir()
    (alone / "1").symlink_to(folder)
    bench.backend.meanwhile = lambda: log.write_text("loading")
    bench.load(place=alone)
    bench.backend.meanwhile = lambda: side.write_text("more")
    assert f"'{alone / '1' / side.name}' has changed" in bench.refusal(place=alone).message
