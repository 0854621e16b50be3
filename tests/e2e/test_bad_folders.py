"""Folders that are no good, or change at the wrong moment: each has its reason in the index, and harms no other."""

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from open_server import OpenServer
from repositories import HELD, copy_example, write_held
from server_process import ServerProcess, eventually, serving
from wire import Ask, assert_serving, http, http_infer

SPARSE_BYTES = 2 << 30
GOOD = "simple"


def _file(folder: Path) -> None:
    shutil.rmtree(folder / "1")
    (folder / "1").write_text("no folder")


def _loop(folder: Path) -> None:
    (folder / "1" / "model.onnx").unlink()
    (folder / "1" / "model.onnx").symlink_to("model.onnx")


def _loop_of_folders(folder: Path) -> None:
    """A way round is no loop for who looks for a model: it is left out."""
    (folder / "1" / "again").symlink_to("..")


def _empty(folder: Path) -> None:
    (folder / "1" / "model.onnx").write_bytes(b"")


def _sparse(folder: Path) -> None:
    with (folder / "1" / "model.onnx").open("wb") as file:
        file.truncate(SPARSE_BYTES)


def _folder(folder: Path) -> None:
    """As for a file that cannot be read: whoever runs the tests may read any file."""
    (folder / "config.pbtxt").unlink()
    (folder / "config.pbtxt").mkdir()


def _weights_folder(folder: Path) -> None:
    (folder / "1" / "model.onnx").unlink()
    (folder / "1" / "model.onnx").mkdir()


def _renamed(folder: Path) -> None:
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace(f'"{folder.name}"', '"another"'))


def _binary(folder: Path) -> None:
    (folder / "config.pbtxt").write_bytes(bytes(range(256)))


def _pipe(name: str) -> Callable[[Path], None]:
    """In place of a file, or beside the others: who opens it waits for a writer that never comes."""

    def spoil(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return spoil


def _device(folder: Path) -> None:
    (folder / "1" / "model.onnx").unlink()
    (folder / "1" / "model.onnx").symlink_to("/dev/zero")


def _labels(folder: Path) -> None:
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace('name: "OUTPUT0"', 'name: "OUTPUT0" label_filename: "labels.txt"'))
    os.mkfifo(folder / "labels.txt")


def _python_model(folder: Path) -> None:
    (folder / "config.pbtxt").write_text('backend: "python"')
    (folder / "1" / "model.onnx").unlink()
    os.mkfifo(folder / "1" / "model.py")


def _nothing(folder: Path) -> None:
    shutil.rmtree(folder / "1")
    (folder / "config.pbtxt").unlink()


BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "version_is_a_file": (_file, "at least one version must be available"),
    "loop": (_loop, r"1/model.onnx' is a symbolic link to 'model.onnx', which does not exist"),
    "empty_file": (_empty, r"1/model.onnx' is empty"),
    "sparse": (_sparse, r"1/model.onnx' is not a model: it begins with zeros"),
    "config_is_a_folder": (_folder, "Is a directory"),
    "weights_are_a_folder": (_weights_folder, r"model.onnx"),
    "another_name": (_renamed, "unexpected directory name 'another_name' for model 'another'"),
    "binary": (_binary, r"config.pbtxt"),
    "nothing": (_nothing, r"."),
    "pipe_as_config": (_pipe("config.pbtxt"), "it is a pipe, expected a regular file"),
    "pipe_as_weights": (_pipe("1/model.onnx"), "1/model.onnx' cannot be read: it is a pipe, expected a regular file"),
    "pipe_beside_weights": (_pipe("1/model.onnx.data"), "1/model.onnx.data' cannot be read: it is a pipe"),
    "pipe_as_digests": (_pipe("1/SHA256SUMS"), "SHA256SUMS' cannot be read: it is a pipe"),
    "device_as_weights": (_device, "1/model.onnx' is a link out of the model repository, to '/dev/zero'"),
    "pipe_as_labels": (_labels, "labels.txt.* it is a pipe"),
    "pipe_as_model_py": (_python_model, "1/model.py' cannot be read: it is a pipe"),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("folders")
    copy_example(root, "simple", GOOD)
    return root


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[ServerProcess]:
    """It polls, and every folder comes while it serves."""
    options = ["--model-control-mode=poll", "--repository-poll-secs=1"]
    errors = [r"model '|cannot read model repository"]
    with serving(repository, options=options, environment=HELD, errors=errors) as running:
        yield running


def entry(server: ServerProcess, name: str) -> dict[str, str]:
    index = http(server.http_port, "POST", "/v2/repository/index").json
    return next((each for each in index if each["name"] == name and each.get("state") != "LOADING"), {})


def add(repository: Path, name: str, spoil: Callable[[Path], None]) -> None:
    """A whole folder at once."""
    outside = repository.parent / "outside"
    outside.mkdir(exist_ok=True)
    copy_example(outside, "simple", name)
    spoil(outside / name)
    (outside / name).rename(repository / name)


def test_bad_folders_have_their_reasons_and_harm_no_other(server: ServerProcess, repository: Path) -> None:
    for name, (spoil, _) in BAD.items():
        add(repository, name, spoil)
    for name, (_, reason) in BAD.items():
        eventually(lambda name=name: entry(server, name).get("reason"))  # type: ignore[misc]
        listed = entry(server, name)["reason"]
        assert entry(server, name)["state"] == "UNAVAILABLE"
        assert re.search(reason, listed), (name, listed)
    assert_serving(server)
    assert http(server.http_port, "GET", "/v2/health/live").status == 200
    for name in BAD:  # they are mended, and served
        shutil.rmtree(repository / name)
        add(repository, name, lambda folder: None)
    for name in BAD:
        eventually(lambda name=name: entry(server, name).get("state") == "READY")  # type: ignore[misc]
        assert http_infer(server.http_port, Ask(model=name)).status == 200
        shutil.rmtree(repository / name)


def test_a_folder_that_holds_a_way_to_itself_is_served(server: ServerProcess, repository: Path) -> None:
    add(repository, "round", _loop_of_folders)
    eventually(lambda: entry(server, "round").get("state") == "READY")
    assert http_infer(server.http_port, Ask(model="round")).status == 200
    shutil.rmtree(repository / "round")


SPOILT = (_empty, _loop, _renamed, _binary, _folder, _file, _python_model, _labels, _device)


def test_folders_that_are_spoilt_serve_on(server: ServerProcess, repository: Path) -> None:
    names = {f"spoilt{spoil.__name__}": spoil for spoil in SPOILT}
    for name in names:
        add(repository, name, lambda folder: None)
    for name, spoil in names.items():
        eventually(lambda name=name: entry(server, name).get("state") == "READY")  # type: ignore[misc]
        spoil(repository / name)
    for name in names:
        reason = eventually(lambda name=name: entry(server, name).get("reason"))  # type: ignore[misc]
        assert entry(server, name)["state"] == "READY", reason
        assert http_infer(server.http_port, Ask(model=name)).status == 200
    assert http(server.http_port, "GET", "/v2/health/ready").status == 200
    for name in names:
        shutil.rmtree(repository / name)
    eventually(lambda: not any(entry(server, name).get("state") == "READY" for name in names))


def test_a_repository_that_goes_and_comes(server: ServerProcess, repository: Path) -> None:
    away = repository.with_name("away")
    repository.rename(away)
    server.wait_for("cannot read model repository .*; loaded models stay")
    assert_serving(server)
    away.rename(repository)
    add(repository, "after", lambda folder: None)
    eventually(lambda: entry(server, "after").get("state") == "READY")
    assert_serving(server)


def test_a_folder_that_is_copied_slowly(server: ServerProcess, repository: Path) -> None:
    """Its parts come one after the other, over some looks; the version that serves goes on."""
    name = "slow"
    add(repository, name, lambda folder: None)
    eventually(lambda: entry(server, name).get("state") == "READY")
    whole = (repository / name / "1" / "model.onnx").read_bytes()
    folder = repository / name / "2"
    folder.mkdir()
    time.sleep(1.2)  # a look or two
    with (folder / "model.onnx").open("wb") as file:
        for start in range(0, len(whole), len(whole) // 3):
            file.write(whole[start : start + len(whole) // 3])
            file.flush()
            assert http_infer(server.http_port, Ask(model=name)).status == 200
            assert http(server.http_port, "GET", f"/v2/models/{name}/ready").status == 200
            time.sleep(0.6)
    eventually(lambda: http(server.http_port, "GET", f"/v2/models/{name}").json["versions"] == ["2"])
    shutil.rmtree(repository / name)


def test_a_model_that_goes_while_it_loads(server: ServerProcess, repository: Path, tmp_path: Path) -> None:
    write_held(tmp_path, "held", loads=False)
    (tmp_path / "held").rename(repository / "held")
    eventually(lambda: "LOADING" in http(server.http_port, "POST", "/v2/repository/index").body.decode())
    (repository / "held" / "1").rmdir()
    (repository / "held" / "config.pbtxt").unlink()
    (repository / "held" / "gate" / "loads").touch()
    assert_serving(server)
    shutil.rmtree(repository / "held")
    eventually(lambda: entry(server, "held").get("state") != "READY")
    assert_serving(server)


def test_an_override_that_is_not_json(tmp_path: Path, open_server: OpenServer) -> None:
    copy_example(tmp_path, "simple", GOOD)
    with open_server.host(tmp_path) as server:
        for config in ("{", "[]", '"text"', "", "nul", '{"maxBatchSize": {}}', '{"a": 1}', "\x00"):
            body = json.dumps({"parameters": {"config": config}}).encode()
            answer = http(server.http_port, "POST", f"/v2/repository/models/{GOOD}/load", body)
            assert answer.status == 400, (config, answer)
            assert "Invalid config override" in answer.json["error"], (config, answer)
            assert_serving(server)
            assert entry(server, GOOD)["state"] == "READY"
