"""Repositories in buckets and archives, on a real server: against an S3 API on loopback, and a relay with faults."""

import io
import json
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from repositories import EXAMPLES, write_identity
from server_here import serving_here, started_here
from server_process import Server, eventually, serving, started
from stores import Relay, Web, relay_to, web
from wire import DIFFERENCE, SUM, Answer, Ask, Input, assert_serving, binary_outputs, http, http_infer, ints

from buckets import KEYS, Bucket, moto

POLL = ("--model-control-mode=poll", "--repository-poll-secs=1")
ROUNDS = Input("INPUT0", "INT32", (1, 3), ints(1, 2, 3))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with moto() as running:
        yield running


@pytest.fixture
def bucket(url: str, request: pytest.FixtureRequest, tmp_path: Path) -> Bucket:
    """With the example `simple` and the model `same` below `triton-repo`."""
    name = "".join(letter for letter in request.node.name.lower() if letter.isalnum())[:60]
    made = Bucket(url, name)
    made.upload(EXAMPLES / "simple", "triton-repo/simple")
    write_identity(tmp_path / "written", "same")
    made.upload(tmp_path / "written", "triton-repo")
    made.put("triton-repo/same/1/data", b"1")
    return made


@pytest.fixture
def relay(url: str) -> Iterator[Relay]:
    with relay_to(url) as running:
        yield running


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    return [f"--repository-cache-dir={tmp_path / 'cache'}", "--repository-timeout-secs=1"]


def place(bucket: Bucket, relay: Relay | None = None) -> str:
    server = bucket.address if relay is None else relay.address
    return f"--model-repository=s3://{server}/{bucket.name}/triton-repo"


def index(server: Server) -> dict[tuple[str, str], tuple[str, str]]:
    """State and reason by model and version."""
    rows = http(server.http_port, "POST", "/v2/repository/index").json
    return {
        (row["name"], row.get("version", "")): (row.get("state", ""), row.get("reason", "").removesuffix(";"))
        for row in rows
    }


def ready(server: Server) -> set[tuple[str, str]]:
    return {key for key, (state, _) in index(server).items() if state == "READY"}


def infer_same(server: Server) -> Answer:
    return http_infer(server.http_port, Ask((ROUNDS,), "same"))


def contents(tmp_path: Path) -> set[bytes]:
    return {path.read_bytes() for path in (tmp_path / "cache" / "content").iterdir()}


def test_the_manifest_of_tutorials(bucket: Bucket, tmp_path: Path) -> None:
    """The arguments of a Deployment for Triton, and the server's address in the environment."""
    arguments = [f"--model-repository=s3://{bucket.name}/triton-repo", "--model-control-mode=poll"]
    environment = {**KEYS, "AWS_ENDPOINT_URL": bucket.url, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with serving_here(options=arguments, environment=environment) as server:
        assert_serving(server)
        assert ready(server) == {("simple", "1"), ("same", "1")}
        assert "downloading 1 file, " in server.log
        assert KEYS["AWS_SECRET_ACCESS_KEY"] not in server.log
    assert (tmp_path / "cache" / "modserve" / "models" / "content").is_dir()


def test_what_changes_in_the_bucket_is_followed(
    bucket: Bucket, relay: Relay, options: list[str], tmp_path: Path
) -> None:
    bucket.put("triton-repo/same/2/data", b"2")
    config = (tmp_path / "written" / "same" / "config.pbtxt").read_bytes()
    errors = ["model 'same' cannot be loaded"]
    with serving_here(options=[place(bucket, relay), *options, *POLL], environment=KEYS, errors=errors) as server:
        assert ready(server) == {("simple", "1"), ("same", "2")}
        assert not any("same/1" in path for path in relay.paths())
        bucket.put("triton-repo/same/3/data", b"3")
        eventually(lambda: ready(server) == {("simple", "1"), ("same", "3")})
        assert infer_same(server).status == 200
        fetched = [path for path in relay.paths() if path.endswith(("data", "config.pbtxt", "model.onnx"))]
        assert len(fetched) == len(set(fetched))
        bucket.delete("triton-repo/simple/1/model.onnx", "triton-repo/simple/config.pbtxt")
        eventually(lambda: ready(server) == {("same", "3")})
        bucket.put("triton-repo/same/config.pbtxt", b'backend: "identity" max_batch_siz: 8')
        server.wait_for("unknown field 'max_batch_siz'; did you mean 'max_batch_size'")
        assert ready(server) == {("same", "3")}
        assert infer_same(server).status == 200
        bucket.delete("triton-repo/same/3/data")
        bucket.put("triton-repo/same/config.pbtxt", config)
        eventually(lambda: ready(server) == {("same", "2")})
        eventually(lambda: contents(tmp_path) == {b"2", config})


def test_models_whose_files_tell_their_backend(bucket: Bucket, options: list[str]) -> None:
    """One without a configuration, one whose configuration names none, and one with another configuration file."""
    model = (EXAMPLES / "simple" / "1" / "model.onnx").read_bytes()
    for name in ("bare", "sized", "other"):
        bucket.put(f"triton-repo/{name}/1/model.onnx", model)
    bucket.put("triton-repo/sized/config.pbtxt", b"max_batch_size: 8")
    bucket.put("triton-repo/other/configs/large.pbtxt", b"max_batch_size: 16")
    with serving_here(options=[place(bucket), *options, "--model-config-name=large"], environment=KEYS) as server:
        assert ready(server) == {(name, "1") for name in ("simple", "same", "bare", "sized", "other")}
        for name, size in (("sized", 8), ("other", 16)):
            config = http(server.http_port, "GET", f"/v2/models/{name}/config").json
            assert (config["backend"], config["max_batch_size"]) == ("onnxruntime", size)


def test_the_second_start_downloads_nothing(bucket: Bucket, relay: Relay, options: list[str]) -> None:
    for start in range(2):
        relay.requests.clear()
        with serving_here(options=[place(bucket, relay), *options], environment=KEYS) as server:
            assert_serving(server)
        files = [path for path in relay.paths() if "triton-repo/" in path]
        assert (len(files) > 0) is (start == 0)


def test_mixed_with_a_directory_and_loaded_by_clients(bucket: Bucket, options: list[str], tmp_path: Path) -> None:
    local = tmp_path / "local"
    write_identity(local, "here")
    more = ["--model-control-mode=explicit", "--load-model=here"]
    with serving_here(local, options=[place(bucket), *options, *more], environment=KEYS) as server:
        assert ready(server) == {("here", "1")}
        assert {"here", "simple", "same"} == {name for name, _ in index(server)}
        for _ in range(2):
            assert http(server.http_port, "POST", "/v2/repository/models/simple/load").status == 200
            assert_serving(server)
            assert http(server.http_port, "POST", "/v2/repository/models/simple/unload").status == 200
        assert http(server.http_port, "POST", "/v2/repository/models/none/load").status == 404
        eventually(lambda: not any((tmp_path / "cache" / "models").iterdir()))


def test_a_bucket_that_is_gone_for_a_while(bucket: Bucket, relay: Relay, options: list[str], tmp_path: Path) -> None:
    """Requests go on without a failure; what changes elsewhere is followed; the bucket comes back by itself."""
    local = tmp_path / "local"
    local.mkdir()
    answers: list[bytes] = []
    failures: list[object] = []
    over = threading.Event()

    def ask(port: int) -> None:
        while not over.is_set():
            answer = http_infer(port, Ask())
            if answer.status == 200 and binary_outputs(answer) == {"OUTPUT0": SUM, "OUTPUT1": DIFFERENCE}:
                answers.append(answer.body)
            else:
                failures.append(answer)

    with serving_here(
        local, options=[place(bucket, relay), *options, *POLL], environment=KEYS, errors=["loaded models stay"]
    ) as server:
        callers = [threading.Thread(target=ask, args=(server.http_port,)) for _ in range(2)]
        for each in callers:
            each.start()
        try:
            relay.faults[""] = "down"
            server.wait_for("the store cannot be reached.*; loaded models stay")
            write_identity(local, "late")
            eventually(lambda: ("late", "1") in ready(server))
            before = len(relay.requests)
            eventually(lambda: len(relay.requests) > before + 3)
            assert ready(server) == {("simple", "1"), ("same", "1"), ("late", "1")}
            assert http(server.http_port, "GET", "/v2/health/ready").status == 200
            relay.faults.clear()
            server.wait_for("model repository 's3://.*' can be read again")
            bucket.put("triton-repo/same/2/data", b"2")
            eventually(lambda: ("same", "2") in ready(server))
        finally:
            over.set()
            for each in callers:
                each.join()
        assert server.log.count("loaded models stay") == 1
    assert failures == []
    assert len(answers) > 10


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("cut", r"cannot download 'same/1/data' from 's3://.*': the transfer "),
        ("stall", r"cannot download 'same/1/data' from 's3://.*': the store does not respond in time"),
        ("403", r"permission denied \(AccessDenied: Access Denied\): check AWS_ACCESS_KEY_ID"),
        ("wrong", r"it arrives damaged: its MD5 does not match its ETag"),
    ],
)
def test_a_download_that_fails(bucket: Bucket, relay: Relay, options: list[str], fault: str, reason: str) -> None:
    """The failure of that model alone, until it goes."""
    bucket.put("triton-repo/same/1/data", bytes(range(200)) * 10_000)
    relay.faults["same/1/data"] = fault
    with started_here(options=[place(bucket, relay), *options, *POLL], environment=KEYS) as server:
        server.wait_for(reason, 60)
        server.wait_for("^model +version +state", 60)
        assert ready(server) == {("simple", "1")}
        assert_serving(server)

        def failure() -> str:
            state, said = index(server)["same", "1"]
            return said if state == "UNAVAILABLE" else ""  # polling may be trying again

        assert "cannot download 'same/1/data'" in eventually(failure)
        relay.faults.clear()
        if fault != "403":
            eventually(lambda: ("same", "1") in ready(server), 60)
            assert infer_same(server).status == 200
        server.stop(errors=["cannot download 'same/1/data'"])


def test_a_stop_while_a_download_stands_still(bucket: Bucket, relay: Relay, options: list[str]) -> None:
    bucket.put("triton-repo/same/1/data", bytes(1_000_000))
    relay.faults["same/1/data"] = "stall"
    with started(options=[place(bucket, relay), *options, "--repository-timeout-secs=60"], environment=KEYS) as server:
        server.wait_for("model 'simple', version 1: ready")
        eventually(lambda: any(path.endswith("same/1/data") for path in relay.paths()))
        assert_serving(server)
        server.stop()


def test_a_client_loads_what_is_elsewhere_during_an_outage(
    bucket: Bucket, relay: Relay, options: list[str], tmp_path: Path
) -> None:
    local = tmp_path / "local"
    write_identity(local, "here")
    more = ["--model-control-mode=explicit", "--load-model=simple"]
    with serving_here(local, options=[place(bucket, relay), *options, *more], environment=KEYS) as server:
        relay.faults[""] = "down"
        assert http(server.http_port, "POST", "/v2/repository/models/here/load").status == 200
        refusal = http(server.http_port, "POST", "/v2/repository/models/same/load")
        assert (refusal.status, "the store cannot be reached" in refusal.json["error"]) == (400, True)
        assert_serving(server)
        assert {"here", "simple", "same"} == {name for name, _ in index(server)}
        relay.faults.clear()
        assert http(server.http_port, "POST", "/v2/repository/models/same/load").status == 200


def test_a_store_that_lies_about_sizes(bucket: Bucket, relay: Relay, options: list[str]) -> None:
    relay.faults["list-type=2"] = "more"
    with started_here(options=[place(bucket, relay), *options], environment=KEYS) as server:
        server.wait_for(r"the store lists \d+ bytes, but would send \d+")
        server.wait_for("^model +version +state")
        assert ready(server) == set()
        server.stop(errors=["the store lists"])


def test_a_key_that_is_a_trick(bucket: Bucket, options: list[str]) -> None:
    for key in ("bad//1/x", "worse/../1/x", "ugly\\1\\x"):
        bucket.put(f"triton-repo/{key}", b"x")
    with serving_here(options=[place(bucket), *options], environment=KEYS, errors=["rename or delete it"]) as server:
        assert_serving(server)
        assert {name for name, _ in index(server)} == {"simple", "same", "bad", "worse"}
        assert "a key of the model cannot be a file below its folder" in str(index(server)["bad", ""])
        assert "a key of the model cannot be a file below its folder" in str(index(server)["worse", ""])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bucket": "no-such-bucket"}, "there is no bucket 'no-such-bucket' (NoSuchBucket"),
        ({"fault": "403"}, "permission denied (AccessDenied: Access Denied): check AWS_ACCESS_KEY_ID"),
        ({"fault": "down"}, "the store cannot be reached at http://127.0.0.1:"),
        ({"fault": "stall"}, "the store does not respond in time at http://127.0.0.1:"),
    ],
    ids=["bucket", "403", "down", "stall"],
)
def test_a_bucket_that_cannot_be_read_at_the_start(
    bucket: Bucket, relay: Relay, options: list[str], change: Mapping[str, str], said: str
) -> None:
    """As with a directory that cannot be read, the server ends with the reason."""
    if "fault" in change:
        relay.faults[""] = change["fault"]
    repository = f"--model-repository=s3://{relay.address}/{change.get('bucket', bucket.name)}/triton-repo"
    with started_here(options=[repository, *options], environment=KEYS) as server:
        server.wait(1, errors=["cannot read model repository 's3://"], seconds=60)
        assert said in server.log


def test_wrong_credentials(tmp_path: Path, options: list[str]) -> None:
    """A server for S3 that checks the keys: after these calls of the test it knows none of them."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "x").write_bytes(b"x")
    with moto({"INITIAL_NO_AUTH_ACTION_COUNT": "2"}) as url:
        bucket = Bucket(url, "guarded")
        bucket.upload(tmp_path / "files", "triton-repo/m/1")
        with started_here(options=[place(bucket), *options], environment=KEYS) as server:
            server.wait(1, errors=["permission denied .InvalidAccessKeyId: "])
            assert "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY" in server.log
            assert not any(KEYS[name] in server.log for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))


def test_the_credential_file_of_triton(bucket: Bucket, relay: Relay, options: list[str], tmp_path: Path) -> None:
    keys = {"key_id": "FROMFILE", "secret_key": "secret", "region": "eu-central-1", "session_token": "TOKEN"}
    file = tmp_path / "credentials.json"
    repository = f"s3://http://{relay.address}/{bucket.name}/triton-repo"
    file.write_text(json.dumps({"s3": {"": {"key_id": "OTHER", "secret_key": "x"}, f"s3://{relay.address}": keys}}))
    environment = {**KEYS, "TRITON_CLOUD_CREDENTIAL_PATH": str(file)}
    with serving_here(options=[f"--model-repository={repository}", *options], environment=environment) as server:
        assert_serving(server)
        assert "FROMFILE" not in server.log
    signed = [headers for _, headers in relay.requests]
    assert all("Credential=FROMFILE/" in headers["authorization"] for headers in map(_lower, signed))
    assert all("/eu-central-1/s3/" in headers["authorization"] for headers in map(_lower, signed))
    assert all(headers["x-amz-security-token"] == "TOKEN" for headers in map(_lower, signed))


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def test_a_profile_of_boto3(bucket: Bucket, relay: Relay, options: list[str], tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.write_text("[team]\naws_access_key_id = OFTEAM\naws_secret_access_key = secret\n")
    environment = {
        "AWS_PROFILE": "team",
        "AWS_SHARED_CREDENTIALS_FILE": str(shared),
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with serving_here(options=[place(bucket, relay), *options], environment=environment) as server:
        assert_serving(server)
    assert all("Credential=OFTEAM/" in _lower(headers)["authorization"] for _, headers in relay.requests)


def test_workers_share_what_they_download(bucket: Bucket, relay: Relay, options: list[str]) -> None:
    bucket.put("triton-repo/same/1/data", bytes(3_000_000))
    with serving(options=[place(bucket, relay), *options, "--workers=2"], environment=KEYS) as server:
        assert_serving(server)
    fetched = [path for path in relay.paths() if path.endswith(("data", "model.onnx"))]
    assert len(fetched) == len(set(fetched)) == 2


def test_google_cloud_storage(bucket: Bucket, relay: Relay, options: list[str]) -> None:
    """The library speaks its XML API, which is that of S3 in what is needed here; a fake of its own is not at hand."""
    relay.as_google = True
    environment = {"GOOGLE_BASE_URL": f"http://{relay.address}", "GOOGLE_BEARER_TOKEN": "hiddenToken"}
    repository = f"--model-repository=gs://{bucket.name}/triton-repo"
    with serving_here(options=[repository, *options, *POLL], environment=environment) as server:
        assert_serving(server)
        bucket.put("triton-repo/same/2/data", b"2")
        eventually(lambda: ("same", "2") in ready(server))


def test_check(bucket: Bucket, options: list[str]) -> None:
    bucket.put("triton-repo/same/config.pbtxt", b'backend: "identity"\nmax_batch_siz: 8')
    words = [place(bucket).removeprefix("--model-repository="), *options, "--load"]
    done = subprocess.run(
        [sys.executable, "-m", "modserve", "check", *words],
        capture_output=True,
        text=True,
        env={**KEYS, "PATH": "", "PYTHONPATH": ":".join(sys.path)},
    )
    assert done.returncode == 1, done.stderr
    where = f"s3://{bucket.address}/{bucket.name}/triton-repo/same/config.pbtxt:2:1"
    assert f"{where}: error: unknown field 'max_batch_siz'; did you mean 'max_batch_size'?" in done.stdout
    assert "2 models loaded: 1 problem in 1 model" in done.stdout


# Archives


def damaged_lzma() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("m/1/x", bytes(range(256)) * 100)
    content = bytearray(made.getvalue())
    content[60:100] = bytes(40)
    return bytes(content)


DAMAGED_LZMA = damaged_lzma()


def packed(folder: Path, kind: str) -> bytes:
    made = io.BytesIO()
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    if kind == "zip":
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in files:
                archive.write(path, path.relative_to(folder))
    else:
        with tarfile.open(fileobj=made, mode="w:gz") as tar:
            for path in files:
                tar.add(path, f"models/{path.relative_to(folder)}")
    return made.getvalue()


@pytest.fixture
def site() -> Iterator[Web]:
    with web() as running:
        yield running


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    shutil.copytree(EXAMPLES / "simple", folder / "simple")
    write_identity(folder, "same")
    (folder / "same" / "1" / "data").write_bytes(b"1")
    return folder


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_an_archive(site: Web, models: Path, options: list[str], kind: str) -> None:
    site.files[f"a/models.{kind}"] = packed(models, kind)
    site.password = "hidden word"
    repository = f"--model-repository=http://me:hidden%20word@{site.address}/a/models.{kind}?signature=hidden"
    with serving_here(
        options=[repository, *options, *POLL], environment={"no_proxy": "*"}, errors=["loaded models stay"]
    ) as server:
        assert_serving(server)
        assert ready(server) == {("simple", "1"), ("same", "1")}
        eventually(lambda: site.statuses.count(304) > 1)
        assert site.statuses.count(200) == 1
        write_identity(models, "more")
        (models / "more" / "1" / "data").write_bytes(b"2")
        shutil.rmtree(models / "same")
        site.files[f"a/models.{kind}"] = packed(models, kind)
        eventually(lambda: ready(server) == {("simple", "1"), ("more", "1")})
        assert server.log.count("model 'simple', version 1: ready") == 1
        del site.files[f"a/models.{kind}"]
        server.wait_for("there is no such archive; loaded models stay")
        assert_serving(server)
        assert "hidden" not in server.log


@pytest.mark.parametrize(
    ("content", "password", "said"),
    [
        (b"no archive", "", "it is damaged or not an archive of this kind"),
        (b"", "", "it is damaged or not an archive of this kind"),
        (None, "", "there is no such archive"),
        (DAMAGED_LZMA, "", "it is damaged or not an archive of this kind"),
        (b"x", "another", "the store does not accept the credentials: check user and password"),
    ],
)
def test_an_archive_that_cannot_be_read(
    site: Web, options: list[str], content: bytes | None, password: str, said: str
) -> None:
    if content is not None:
        site.files["m.zip"] = content
    site.password = password
    repository = f"--model-repository=http://me:mine@{site.address}/m.zip"
    with started_here(options=[repository, *options], environment={"no_proxy": "*"}) as server:
        server.wait(1, errors=["cannot read model repository 'http://127.0.0.1:"])
        assert said in server.log
        assert "mine@" not in server.log


def test_an_archive_that_leads_out_of_itself(site: Web, options: list[str], tmp_path: Path) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("m/1/x", b"x")
        archive.writestr("../../escaped", b"x")
    site.files["m.zip"] = made.getvalue()
    repository = f"--model-repository=http://{site.address}/m.zip"
    with started_here(options=[repository, *options], environment={"no_proxy": "*"}) as server:
        server.wait(1, errors=["which leads out of it"])
    assert not list(tmp_path.rglob("escaped"))
