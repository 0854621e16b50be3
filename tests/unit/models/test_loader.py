"""From a model directory to a model that takes requests, or to an error that leaves nothing open."""

import asyncio
import dataclasses
import json
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from modserve.backends.api import BackendModel, Executor, InstanceSpec, ModelSource
from modserve.backends.registry import BackendRegistry
from modserve.core.configuration.model_config import DescribedTensor, InstanceKind, ModelDescription
from modserve.core.errors import Code, ModserveError, invalid, unavailable
from modserve.core.loading import Blueprint, Listing, UnreadableModelError
from modserve.core.tensors import dtypes
from modserve.core.version import ModelId
from modserve.models.loading.loader import Loader, LoaderOptions
from modserve.models.loading.reading import ModelReader
from modserve.models.serving.model import Model
from modserve.pb import inference as pb
from modserve.repository.local import LocalRepository
from modserve.testing import PuppetBackend, write_model

TENSORS = """
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 4 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 4 ] } ]
"""
CONFIG = 'backend: "puppet"\nmax_batch_size: 8\n' + TENSORS
DESCRIPTION = ModelDescription(
    (DescribedTensor("INPUT0", dtypes.INT32, (-1, 4)),), (DescribedTensor("OUTPUT0", dtypes.INT32, (-1, 4)),)
)


@pytest.fixture(scope="module")
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


class Bench:
    """A repository and a loader whose backend is a puppet."""

    def __init__(self, repository: Path, executor: ThreadPoolExecutor) -> None:
        self.repository = repository
        self.backend = PuppetBackend()
        self.executor = executor
        self.open: list[Model] = []
        self.loader = self.new_loader()

    def new_loader(
        self, cores: int = 8, auto_complete: bool = True, options: Mapping[str, Mapping[str, str]] | None = None
    ) -> Loader:
        self.loader = Loader(
            BackendRegistry({"puppet": self.backend}),
            LoaderOptions(cores, auto_complete, options or {}),
            self.executor,
        )
        return self.loader

    def write(self, text: str = CONFIG, name: str = "model", versions: tuple[str, ...] = ("1",)) -> Listing:
        write_model(self.repository, name, text, versions)
        return LocalRepository(self.repository).read(name)

    async def load(self, model: Listing, version: int = 1) -> Model:
        return await self.open_version(await self.loader.inspect(model), version)

    async def open_version(self, blueprint: Blueprint, version: int) -> Model:
        loaded = await blueprint.load(blueprint.listing.path, version)
        assert isinstance(loaded, Model)
        self.open.append(loaded)
        return loaded

    async def refusal(self, model: Listing) -> ModserveError:
        """Why the model does not load; nothing is left open."""
        with pytest.raises(ModserveError) as caught:
            await self.load(model)
        assert (self.backend.open_models, self.backend.open_instances) == (0, 0)
        return caught.value


@pytest.fixture
async def bench(tmp_path: Path, executor: ThreadPoolExecutor) -> AsyncIterator[Bench]:
    made = Bench(tmp_path, executor)
    yield made
    for model in made.open:
        await model.close()
    assert (made.backend.open_models, made.backend.open_instances) == (0, 0)


# Backends that no configuration names


def test_the_files_of_a_model_that_is_elsewhere_tell_its_backend() -> None:
    listing = Listing(
        "far", LocalRepository(Path("/none")), Path("/none/far"), (1,), filenames=[frozenset({"model.py"})]
    )
    assert ModelReader(BackendRegistry({}), LoaderOptions(8)).read(listing).identified.backend == "python"
    for written in (b"max_batch_size: 8", None):
        draft = ModelReader(BackendRegistry({}), LoaderOptions(8)).read(dataclasses.replace(listing, content=written))
        assert (draft.backend, draft.identified.default_model_filename) == ("python", "model.py")


def test_so_do_those_beside_another_configuration_file(tmp_path: Path) -> None:
    write_model(tmp_path, "model", "", ("1",))
    folder = tmp_path / "model"
    (folder / "1" / "model.onnx").write_bytes(b"")
    (folder / "configs").mkdir()
    (folder / "configs" / "big.pbtxt").write_text("max_batch_size: 8")
    listing = LocalRepository(tmp_path, "big").read("model")
    assert listing.config_file == "configs/big.pbtxt"
    assert ModelReader(BackendRegistry({}), LoaderOptions(8)).read(listing).backend == "onnxruntime"


# Versions


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("", [10]),
        ("version_policy { latest { num_versions: 2 } }", [2, 10]),
        ("version_policy { all {} }", [1, 2, 10]),
        ("version_policy { specific { versions: [ 10, 1 ] } }", [1, 10]),
        ("version_policy { specific { versions: [ 2, 3 ] } }", [2]),
    ],
    ids=["default", "latest two", "all", "specific", "one is not there"],
)
async def test_wanted_versions(bench: Bench, policy: str, expected: list[int]) -> None:
    model = bench.write(CONFIG + policy, versions=("1", "2", "10"))
    assert list((await bench.loader.inspect(model)).versions) == expected


@pytest.mark.parametrize(
    ("text", "versions", "code", "message"),
    [
        (
            CONFIG,
            (),
            Code.INVALID_ARG,
            "at least one version must be available under the version policy of model 'model'",
        ),
        (
            CONFIG + "version_policy { specific { versions: [ 7 ] } }",
            ("1",),
            Code.INVALID_ARG,
            "at least one version must be available under the version policy of model 'model'",
        ),
        ('backend: "nosuch"' + TENSORS, ("1",), Code.INVALID_ARG, "unable to find backend 'nosuch'"),
        ("nosuch_field: 1", ("1",), Code.INVALID_ARG, "nosuch_field"),
    ],
    ids=["no versions", "none selected", "backend", "syntax"],
)
async def test_models_without_wanted_versions(
    bench: Bench, text: str, versions: tuple[str, ...], code: Code, message: str
) -> None:
    write_model(bench.repository, "model", versions=versions)
    (bench.repository / "model").mkdir(exist_ok=True)
    (bench.repository / "model" / "config.pbtxt").write_text(text)
    with pytest.raises(ModserveError) as caught:
        await bench.loader.inspect(LocalRepository(bench.repository).read("model"))
    assert caught.value.code is code
    assert message in caught.value.message


# Loading


async def test_a_loaded_model(bench: Bench) -> None:
    model = await bench.load(bench.write(versions=("3",)), 3)
    assert model.id == ModelId("model", 3)
    assert (model.config.name, model.config.backend, model.config.max_batch_size) == ("model", "puppet", 8)
    message = pb.ModelConfig.FromString(model.config_message)
    assert (message.name, message.version_policy.latest.num_versions) == ("model", 1)
    assert [group.name for group in message.instance_group] == [group.name for group in model.config.instance_groups]
    assert (bench.backend.open_models, bench.backend.open_instances) == (1, 1)
    assert repr(model) == "Model(model, version 3, 0 outstanding, InstancePool(model, 1 of 1 free))"


async def test_what_the_instances_are_told(bench: Bench) -> None:
    specs: list[InstanceSpec] = []

    class Watching(PuppetBackend):
        def open(self, source: ModelSource) -> Any:
            model = super().open(source)
            make = model.instance
            model.instance = lambda spec: (specs.append(spec), make(spec))[1]  # type: ignore[method-assign, func-returns-value]
            return model

    bench.backend = Watching()
    bench.new_loader()
    text = CONFIG + 'instance_group [ { count: 2 kind: KIND_CPU } ] parameters { key: "a" value { string_value: "b" } }'
    await bench.load(bench.write(text))
    assert [(spec.name, spec.kind, spec.device, spec.index) for spec in specs] == [
        ("model_0_0", InstanceKind.CPU, 0, 0),
        ("model_0_1", InstanceKind.CPU, 0, 1),
    ]
    said = json.loads(specs[0].config_json)
    assert said["name"] == "model"
    assert said["max_batch_size"] == 8
    assert said["input"][0]["data_type"] == "TYPE_INT32"
    assert said["parameters"] == {"a": {"string_value": "b"}}
    assert specs[0].config_json is specs[1].config_json  # made once
    assert json.loads(bench.backend.sources[-1].config_json)["instance_group"][0]["count"] == 2


async def test_what_the_backend_is_told(bench: Bench) -> None:
    bench.new_loader(options={"puppet": {"strings": "attached"}, "other": {"x": "y"}})
    directory = bench.write(CONFIG + 'default_model_filename: "weights.bin"', versions=("2",))
    await bench.load(directory, 2)
    [source] = bench.backend.sources
    assert source.version == 2
    assert source.path == bench.repository / "model" / "2" / "weights.bin"
    assert source.model_directory == bench.repository / "model"
    assert source.config.name == "model"
    assert source.options == {"strings": "attached"}


async def test_without_a_file_name_the_backend_gets_the_version_directory(bench: Bench) -> None:
    await bench.load(bench.write())
    assert bench.backend.sources[0].path == bench.repository / "model" / "1"


async def test_the_backend_names_the_file(bench: Bench) -> None:
    bench.backend.default_model_filename = "model.puppet"
    model = await bench.load(bench.write())
    assert bench.backend.sources[0].path.name == "model.puppet"
    assert model.config.default_model_filename == "model.puppet"


async def test_what_the_configuration_leaves_out_comes_from_the_model(bench: Bench) -> None:
    bench.backend.description = DESCRIPTION
    model = await bench.load(bench.write('backend: "puppet"\nmax_batch_size: 8'))
    assert [(spec.name, spec.datatype, spec.dims) for spec in model.config.inputs] == [("INPUT0", dtypes.INT32, (4,))]


async def test_or_not_if_that_is_switched_off(bench: Bench) -> None:
    bench.backend.description = DESCRIPTION
    bench.new_loader(auto_complete=False)
    assert (await bench.refusal(bench.write('backend: "puppet"\nmax_batch_size: 8'))).code is Code.INVALID_ARG


@pytest.mark.parametrize(
    ("groups", "default", "expected"),
    [
        ("", 1, 1),
        ("", 3, 3),
        ("instance_group { count: 2 kind: KIND_CPU }", 3, 2),
        ("instance_group { kind: KIND_CPU }", 3, 3),
        ("instance_group [ { count: 2 kind: KIND_CPU }, { count: 1 kind: KIND_CPU } ]", 1, 3),
    ],
    ids=["default", "the backend's default", "count", "no count", "two groups"],
)
async def test_instances(bench: Bench, groups: str, default: int, expected: int) -> None:
    bench.backend.default_cpu_instances = default
    await bench.load(bench.write(CONFIG + groups))
    assert bench.backend.open_instances == expected
    assert bench.backend.sources[0].cpu_instances == expected


@pytest.mark.parametrize(("cores", "share"), [(16, 3), (5, 1), (2, 1), (64, 12)], ids=str)
async def test_cores_are_shared_out_over_all_instances_of_all_models(bench: Bench, cores: int, share: int) -> None:
    bench.new_loader(cores)
    twice = "instance_group { count: 2 kind: KIND_CPU }\nversion_policy { all {} }"
    first = bench.write(CONFIG + twice, "first", ("1", "2"))
    second = bench.write(CONFIG, "second")
    # All are inspected before the first one loads.
    blueprints = [await bench.loader.inspect(directory) for directory in (first, second)]
    for index, version in ((0, 1), (0, 2), (1, 1)):
        await bench.open_version(blueprints[index], version)
    assert [source.cpu_threads for source in bench.backend.sources] == [share] * 3


async def test_a_model_asked_for_again_is_counted_once(bench: Bench) -> None:
    bench.new_loader(cores=4)
    directory = bench.write()
    for _ in range(3):
        await bench.loader.inspect(directory)
    await bench.load(directory)
    assert bench.backend.sources[0].cpu_threads == 4


async def test_what_is_no_ensemble_needs_nothing(bench: Bench) -> None:
    assert (await bench.loader.inspect(bench.write())).needs == {}


async def test_all_versions_of_a_load_have_one_configuration(bench: Bench) -> None:
    directory = bench.write(CONFIG + "version_policy { all {} }", versions=("1", "2"))
    (directory.path / "config.pbtxt").write_text("this is no configuration")
    blueprint = await bench.loader.inspect(directory)
    assert blueprint.versions == (1, 2)
    models = [await bench.open_version(blueprint, version) for version in (1, 2)]
    assert [model.config.max_batch_size for model in models] == [8, 8]


# What people are told


async def test_options_of_a_backend_that_have_no_effect(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.new_loader(options={"puppet": {"speed": "2", "colour": "red"}})
    bench.backend.known_options = {"speed": ""}  # type: ignore[attr-defined]
    for name in ("model", "another"):
        await bench.load(bench.write(name=name))
    assert caplog.messages == [
        "backend option 'colour' of backend 'puppet' has no effect: backend 'puppet' does not know it"
    ]


async def test_a_configuration_that_is_called_otherwise(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    directory = bench.write("", name="model.puppet")
    (directory.path / "config.pbtext").write_text(CONFIG)
    bench.backend.description = DESCRIPTION
    await bench.load(directory)
    assert [message for message in caplog.messages if "pbtext" in message] == [
        f"model 'model.puppet': '{directory.path}/config.pbtext' is not read: a model's configuration is called "
        "'config.pbtxt'"
    ]


@pytest.mark.parametrize(
    ("text", "versions", "files", "lines"),
    [
        (CONFIG, (), {"v1/x": b""}, ["at least one version must be available", "folder 'v1' is not a version"]),
        (
            CONFIG + "version_policy { specific { versions: [ 7 ] } }",
            ("1",),
            {},
            ["at least one version must be available", "the available versions: 1"],
        ),
        (
            'backend: "llama_cpp"' + TENSORS,
            ("1",),
            {},
            ["unable to find backend 'llama_cpp'", "language models run on"],
        ),
        ('backend: "pupet"' + TENSORS, ("1",), {}, ["unable to find backend 'pupet'", "did you mean 'puppet'?"]),
        (
            'backend: "onnxruntime"' + TENSORS,
            ("1",),
            {"1/model.onnx": b"version https://git-lfs.github.com/spec/v1"},
            ["Protobuf parsing failed", "is not a model: it is the pointer of Git LFS"],
        ),
        ('backend: "onnxruntime"' + TENSORS, ("1",), {"1/a.onnx": b""}, ["unable to find model file", "rename '1/a.o"]),
    ],
    ids=["name of the version", "policy", "another server's", "misspelt", "git lfs", "file"],
)
async def test_what_to_do_stands_behind_tritons_text(
    bench: Bench, text: str, versions: tuple[str, ...], files: dict[str, bytes], lines: list[str]
) -> None:
    directory = bench.write(text, versions=versions)
    for name, content in files.items():
        (directory.path / name).parent.mkdir(exist_ok=True)
        (directory.path / name).write_bytes(content)
    message = (await bench.refusal(LocalRepository(bench.repository).read(directory.name))).message
    places = [message.index(line) for line in lines]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("files", "first"),
    [
        ({"resnet.onnx": b""}, "move 'resnet.onnx' to '1/model.onnx': model files belong in the folder of their v"),
        ({"1/resnet.onnx": b""}, "rename '1/resnet.onnx' to '1/model.onnx', or write default_model_filename"),
        ({"v1/model.onnx": b""}, "folder 'v1' is not a version: versions are named by whole numbers, such as"),
    ],
    ids=["beside the version", "name of the file", "name of the version"],
)
@pytest.mark.parametrize("text", ["", TENSORS])
async def test_what_to_do_is_all_that_is_said_where_the_files_show_what_is_meant(
    bench: Bench, text: str, files: dict[str, bytes], first: str
) -> None:
    directory = bench.write(text, versions=())
    for name, content in files.items():
        (directory.path / name).parent.mkdir(exist_ok=True)
        (directory.path / name).write_bytes(content)
    message = (await bench.refusal(LocalRepository(bench.repository).read(directory.name))).message
    assert message.startswith(first)
    assert f"\n'{directory.path}' holds: " in message
    assert "Invalid model name" not in message
    assert "installed backends" not in message


async def test_of_a_file_for_no_backend_what_backends_take_is_said_last(bench: Bench) -> None:
    directory = bench.write("", versions=("1",))
    (directory.path / "1" / "net.mlmodel").write_bytes(b"")
    message = (await bench.refusal(LocalRepository(bench.repository).read(directory.name))).message
    lines = ["'1/net.mlmodel' is a Core ML file", "holds: 1/ (net.mlmodel)", "installed backends: "]
    places = [message.index(line) for line in lines]
    assert places == sorted(places)
    assert places[0] == 0


async def test_where_the_files_show_nothing_tritons_text_and_what_backends_take(bench: Bench) -> None:
    directory = bench.write("", versions=("1",))
    (directory.path / "1" / "readme.txt").write_bytes(b"")
    message = (await bench.refusal(LocalRepository(bench.repository).read(directory.name))).message
    lines = ["Invalid model name: Could not determine backend", "holds: 1/ (readme.txt)", "installed backends: "]
    places = [message.index(line) for line in lines]
    assert places == sorted(places)


# Failures


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (OSError("bad weights"), Code.INTERNAL, "failed to load model 'model' version 1: bad weights"),
        (invalid("bad file"), Code.INVALID_ARG, "bad file"),
        (unavailable("try later"), Code.UNAVAILABLE, "try later"),
    ],
    ids=["foreign", "ours", "ours, another"],
)
async def test_the_model_can_not_be_opened(bench: Bench, error: Exception, code: Code, message: str) -> None:
    bench.backend.fail_to_open = error
    refused = await bench.refusal(bench.write())
    assert (refused.code, refused.message) == (code, message)


async def test_the_model_is_another_than_the_configuration_says(bench: Bench) -> None:
    bench.backend.description = ModelDescription(
        (DescribedTensor("INPUT0", dtypes.FP32, (-1, 4)),), DESCRIPTION.outputs
    )
    refused = await bench.refusal(bench.write())
    assert refused.code is Code.INVALID_ARG
    assert "INPUT0" in refused.message


async def test_gpus_that_are_not_there(bench: Bench) -> None:
    refused = await bench.refusal(bench.write(CONFIG + "instance_group { count: 1 kind: KIND_GPU }"))
    assert refused.code is Code.INVALID_ARG
    assert "GPU" in refused.message


class _Scarce(PuppetBackend):
    """Runs out of memory at the second instance."""

    def open(self, source: ModelSource) -> "_ScarceModel":  # type: ignore[override]
        return _ScarceModel(self, super().open(source))


class _ScarceModel:
    def __init__(self, backend: PuppetBackend, model: BackendModel) -> None:
        self._backend = backend
        self._model = model
        self.describe = model.describe
        self.close = model.close

    def instance(self, spec: InstanceSpec) -> Executor:
        if self._backend.open_instances:
            raise MemoryError("out of memory")
        return self._model.instance(spec)


async def test_an_instance_can_not_be_made(bench: Bench) -> None:
    bench.backend = _Scarce()
    bench.new_loader()
    refused = await bench.refusal(bench.write(CONFIG + "instance_group { count: 3 kind: KIND_CPU }"))
    assert refused.code is Code.INTERNAL
    assert refused.message == "failed to load model 'model' version 1: out of memory"


@pytest.mark.parametrize(
    "text",
    [
        'key: "scheduling.batch_sizes" value { string_value: "2,8" }',
        'key: "padding.axis.X" value { string_value: "0" }',
    ],
    ids=["rows", "lengths"],
)
async def test_padding_is_for_engines_that_take_batches(bench: Bench, text: str) -> None:
    bench.backend = PuppetBackend(by_request=True)
    bench.new_loader()
    config = CONFIG.replace("output", 'input { name: "X" data_type: TYPE_INT32 dims: [ -1 ] } output')
    refused = await bench.refusal(bench.write(f"{config} dynamic_batching {{ }} parameters {{ {text} }}"))
    assert refused.code is Code.INVALID_ARG
    assert "its parameters ask for padding" in refused.message
    assert "Backend 'puppet' cannot pad: it gets requests one by one" in refused.message


class _WithGpu(PuppetBackend):
    def gpu_count(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("groups", "kinds", "cpu_instances"),
    [
        ("", [InstanceKind.GPU], 1),
        (
            "instance_group [ { count: 2 kind: KIND_CPU }, { count: 1 kind: KIND_GPU } ]",
            [InstanceKind.CPU, InstanceKind.CPU, InstanceKind.GPU],
            2,
        ),
    ],
    ids=["by itself", "beside the CPU"],
)
async def test_instances_on_gpus_take_no_share_of_the_cores(
    bench: Bench, groups: str, kinds: list[InstanceKind], cpu_instances: int
) -> None:
    bench.backend = _WithGpu()
    bench.new_loader(cores=8)
    await bench.load(bench.write(CONFIG + groups))
    [source] = bench.backend.sources
    assert (source.cpu_threads, source.cpu_instances) == (8 // cpu_instances, cpu_instances)
    assert bench.backend.open_instances == len(kinds)


async def test_a_forgotten_model_gives_its_share_back(bench: Bench) -> None:
    bench.new_loader(cores=8)
    other = bench.write(name="other")
    await bench.loader.inspect(other)
    model = bench.write()
    await bench.load(model)
    bench.loader.forget("other")
    bench.loader.forget("nosuch")
    await bench.load(model)
    assert [source.cpu_threads for source in bench.backend.sources] == [4, 8]


def running_instances() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("instance-model_")}


async def test_a_model_that_can_not_be_made_of_its_instances_leaves_nothing_open(bench: Bench) -> None:
    state = f'input_name: "I" output_name: "O" data_type: TYPE_INT32 dims: [ {2**63 - 1} ]'
    text = CONFIG + "instance_group [ { kind: KIND_CPU count: 3 } ] sequence_batching { state [ { " + state + " } ] }"
    before = running_instances()
    error = await bench.refusal(bench.write(text))
    assert error.message.startswith("failed to load model 'model' version 1: ")
    left = running_instances() - before
    for thread in left:
        await asyncio.to_thread(thread.join, 30)
    assert not any(thread.is_alive() for thread in left)
    assert len(bench.backend.sources) == 1


async def test_a_cancelled_load_leaves_nothing_open(bench: Bench, executor: ThreadPoolExecutor) -> None:
    opened, go = threading.Event(), threading.Event()
    open_model = bench.backend.open

    def open_slowly(source: ModelSource) -> BackendModel:
        made = open_model(source)
        opened.set()
        assert go.wait(30)
        return made

    bench.backend.open = open_slowly  # type: ignore[method-assign,assignment]
    loading = asyncio.create_task(bench.load(bench.write()))
    assert await asyncio.to_thread(opened.wait, 30)
    loading.cancel()
    await asyncio.wait((loading,))
    assert (loading.cancelled(), bench.backend.open_models) == (True, 1)
    go.set()
    await asyncio.wrap_future(executor.submit(int))  # whatever came before on the one thread is over
    assert (bench.backend.open_models, bench.backend.open_instances) == (0, 0)


# Configurations that come with the request


async def test_a_configuration_in_place_of_the_file(bench: Bench) -> None:
    config = {
        "backend": "puppet",
        "maxBatchSize": 2,
        "input": [{"name": "INPUT0", "dataType": "TYPE_INT32", "dims": [4]}],
        "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": ["4"]}],
    }
    directory = dataclasses.replace(bench.write("no configuration at all"), config=json.dumps(config))
    assert (await bench.load(directory)).config.max_batch_size == 2


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, r"^1 problem in the configuration of model 'model'\n.*config.pbtxt:1:1: unknown field 'nosuch'"),
        ('{"nosuch": 1}', r"^Invalid config override: .* no field named \"nosuch\""),
    ],
    ids=["file", "override"],
)
async def test_a_configuration_that_can_not_be_read(bench: Bench, config: str | None, message: str) -> None:
    directory = dataclasses.replace(bench.write("nosuch: 1"), config=config)
    with pytest.raises(UnreadableModelError, match=message):
        await bench.loader.inspect(directory)


# Labels


def labelled(filename: str) -> str:
    return CONFIG.replace('name: "OUTPUT0"', f'name: "OUTPUT0" label_filename: "{filename}"')


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"cat\ndog\n", ("cat", "dog")),
        (b"cat\ndog", ("cat", "dog")),
        (b"cat\n\nowl\n\n", ("cat", "", "owl", "")),
        (b"", ()),
        (b"caf\xc3\xa9 noir\r\n\xff", ("café noir", "\udcff")),
    ],
    ids=["lines", "no end to the last", "empty lines", "empty file", "bytes as they are"],
)
async def test_label_files(bench: Bench, content: bytes, expected: tuple[str, ...]) -> None:
    directory = bench.write(labelled("labels.txt"))
    (directory.path / "labels.txt").write_bytes(content)
    assert (await bench.load(directory)).labels == {"OUTPUT0": expected}


async def test_outputs_without_a_label_file(bench: Bench) -> None:
    assert (await bench.load(bench.write())).labels == {}


@pytest.mark.parametrize("obstacle", ["No such file or directory", "Is a directory"])
async def test_a_label_file_that_can_not_be_read_fails_the_load(bench: Bench, obstacle: str) -> None:
    directory = bench.write(labelled("labels.txt"))
    path = directory.path / "labels.txt"
    if obstacle == "Is a directory":
        path.mkdir()
    error = await bench.refusal(directory)
    assert error.code is Code.INTERNAL
    assert error.message == (
        f"failed to open text file for read {path}: {obstacle} (label_filename of output 'OUTPUT0' of model 'model')"
    )


STATEFUL = (
    CONFIG
    + """sequence_batching { state { input_name: "S" output_name: "T" data_type: TYPE_INT32 dims: [ 2 ]
    initial_state { name: "first" data_type: TYPE_INT32 dims: [ 2 ] data_file: "first" } } }"""
)


async def test_a_file_with_the_first_state_that_can_not_be_read_fails_the_load(bench: Bench) -> None:
    directory = bench.write(STATEFUL)
    error = await bench.refusal(directory)
    assert error.code is Code.INTERNAL
    assert error.message == (
        f"failed to open text file for read {directory.path / 'initial_state' / 'first'}: No such file or directory "
        "(data_file of the initial_state of state 'S' of model 'model')"
    )


async def test_a_file_with_the_first_state_that_is_too_short_fails_the_load(bench: Bench) -> None:
    directory = bench.write(STATEFUL)
    (directory.path / "initial_state").mkdir()
    (directory.path / "initial_state" / "first").write_bytes(b"1234")
    assert (await bench.refusal(directory)).message == (
        "initial_state setting expects 8 bytes, but the data provided from first only has 4 bytes."
    )
