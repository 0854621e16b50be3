"""A repository in Azure's Blob Storage: against Azurite, its emulator, from npm's registry."""

import base64
import hashlib
import hmac
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from email.utils import formatdate
from http.client import HTTPConnection
from pathlib import Path

import obstore
import pytest
from node_packages import NoPackagesError, node_modules
from obstore.store import AzureStore
from repositories import EXAMPLES
from server_here import serving_here, started_here
from server_process import Server, eventually
from wire import assert_serving, http

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Which Azurite's documentation publishes, for everybody."""
OPTIONS = ("--model-control-mode=poll", "--repository-poll-secs=1")


@pytest.fixture(scope="module")
def program() -> Path:
    try:
        return node_modules("azurite") / "azurite" / "dist" / "src" / "blob" / "main.js"
    except NoPackagesError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def port(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    options = ["--blobHost", "127.0.0.1", "--blobPort", "0", "--inMemoryPersistence", "--disableTelemetry"]
    process = subprocess.Popen(
        ["node", str(program), *options, "--skipApiVersionCheck"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path_factory.mktemp("azurite"),
    )
    try:
        assert process.stdout is not None
        lines = (re.search(r"listens on http://127\.0\.0\.1:(\d+)", line) for line in process.stdout)
        yield next(int(match[1]) for match in lines if match)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def store(port: int) -> AzureStore:
    """A container with the example `simple` below `models`."""
    date, version = formatdate(usegmt=True), "2021-08-06"
    lines = ["PUT", *[""] * 11, f"x-ms-date:{date}", f"x-ms-version:{version}"]
    text = "\n".join([*lines, f"/{ACCOUNT}/{ACCOUNT}/container", "restype:container"])
    signature = base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()
    headers = {"x-ms-date": date, "x-ms-version": version, "Authorization": f"SharedKey {ACCOUNT}:{signature}"}
    with closing(HTTPConnection("127.0.0.1", port)) as connection:
        connection.request("PUT", f"/{ACCOUNT}/container?restype=container", headers=headers)
        assert connection.getresponse().status == 201
    made = AzureStore(
        "container",
        config={"account_name": ACCOUNT, "account_key": KEY, "endpoint": f"http://127.0.0.1:{port}/{ACCOUNT}"},
        client_options={"allow_http": True},
    )
    folder = EXAMPLES / "simple"
    for path in folder.rglob("*"):
        if path.is_file():
            obstore.put(made, f"models/simple/{path.relative_to(folder)}", path.read_bytes())
    return made


def environment(port: int, key: str = KEY) -> dict[str, str]:
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    return {"AZURE_STORAGE_ACCOUNT": ACCOUNT, "AZURE_STORAGE_KEY": key, "AZURE_STORAGE_ENDPOINT": endpoint}


def ready(server: Server) -> list[str]:
    rows: list[dict[str, str]] = http(server.http_port, "POST", "/v2/repository/index").json
    return sorted(row["version"] for row in rows if row.get("state") == "READY")


def test_models_in_a_container(port: int, store: AzureStore, tmp_path: Path) -> None:
    options = [f"--model-repository=as://{ACCOUNT}/container/models", f"--repository-cache-dir={tmp_path}", *OPTIONS]
    with serving_here(options=options, environment=environment(port)) as server:
        assert_serving(server)
        model = (EXAMPLES / "simple" / "1" / "model.onnx").read_bytes()
        obstore.put(store, "models/simple/2/model.onnx", model)
        eventually(lambda: ready(server) == ["2"])
        assert_serving(server)
        obstore.delete(store, "models/simple/2/model.onnx")
        eventually(lambda: ready(server) == ["1"])
        assert KEY not in server.log


def test_a_rolled_back_version(port: int, store: AzureStore, tmp_path: Path) -> None:
    """The container has it, also for a server on another machine."""
    place, path = f"--model-repository=as://{ACCOUNT}/container/models", "/v2/models/simple/routing"
    for cache, reason in (("one", "wrong sums"), ("two", None)):
        options = [place, f"--repository-cache-dir={tmp_path / cache}"]
        with serving_here(options=options, environment=environment(port)) as server:
            if reason is None:
                assert http(server.http_port, "GET", path).json["rolled_back"]["1"]["reason"] == "wrong sums"
            body = json.dumps({"rolled_back": {"1": reason}}).encode()
            answer = http(server.http_port, "POST", path, body)
            assert answer.status == 200
            assert "unsaved" not in answer.body.decode()
        keys = [meta["path"] for meta in obstore.list(store, "models").collect()]
        assert ("models/simple/rolled_back.json" in keys) == (reason is not None)


@pytest.mark.parametrize(
    ("key", "container", "said"),
    [
        ("wrong", "container", "(AuthorizationFailure: "),
        (KEY, "nothere", "there is no container 'nothere' in account 'devstoreaccount1'"),
    ],
)
@pytest.mark.usefixtures("store")
def test_a_container_that_cannot_be_read(port: int, tmp_path: Path, key: str, container: str, said: str) -> None:
    wrong = base64.b64encode(key.encode()).decode() if key != KEY else key
    options = [f"--model-repository=as://{ACCOUNT}/{container}", f"--repository-cache-dir={tmp_path}"]
    with started_here(options=options, environment=environment(port, wrong)) as server:
        server.wait(1, errors=["cannot read model repository 'as://"])
        assert said in server.log
        assert wrong not in server.log
