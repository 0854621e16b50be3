"""``modserve config``: what it writes loads as it is, and says what the server would have made of the file."""

import asyncio
import re
import shutil
from pathlib import Path

import onnx
import pytest
from mistakes import EXAMPLES

from kept_logging import untouched_logging
from modserve import InferenceServer, Settings, cli
from modserve.commands import config
from modserve.models.loading.one_file import model_file
from modserve.pb import inference as pb

pytestmark = pytest.mark.usefixtures(untouched_logging.__name__)

FILES = sorted(EXAMPLES.glob("*/*/*.onnx"))


def fixed_shape() -> bytes:
    """An ONNX model without a dimension for a batch."""
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["X"], ["Y"])],
        "fixed",
        [value("X", onnx.TensorProto.FLOAT, [3])],
        [value("Y", onnx.TensorProto.FLOAT, [3])],
    )
    opset = onnx.helper.make_opsetid("", 17)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model file in no repository."""
    return Path(shutil.copy(EXAMPLES / "digits" / "1" / "model.onnx", tmp_path / "numbers.onnx"))


def made(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["config", *words]) == 0
    out, err = capsys.readouterr()
    assert not err
    return out


def loaded(folder: Path, file: Path, text: str, *, auto_complete: bool) -> pb.ModelConfig:
    """What a server makes of a model file with the configuration `text`; nothing but `text` without auto-completion."""
    version = folder / "models" / model_file(file, ()).name / "1"
    version.mkdir(parents=True)
    shutil.copy(file, version / file.name)
    if text:
        (version.parent / "config.pbtxt").write_text(text)
    settings = Settings(model_repository=folder / "models", disable_auto_complete_config=not auto_complete)

    async def serve() -> pb.ModelConfig:
        async with InferenceServer(settings) as server:
            assert [(each.state.value, each.reason) for each in await server.repository_index(False)] == [("READY", "")]
            (servable,) = server.ready_models()
            return pb.ModelConfig.FromString(servable.config_message)

    return asyncio.run(serve())


@pytest.mark.parametrize("file", FILES, ids=lambda file: "-".join(file.parts[-3:-1]))
def test_the_configuration_of_each_example_loads_as_it_is(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = made(capsys, str(file))
    with_it = loaded(tmp_path / "with", file, text, auto_complete=False)
    without = loaded(tmp_path / "without", file, "", auto_complete=True)
    assert with_it == without


def test_every_section_that_is_commented_out_can_be_used(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = made(capsys, str(model), "--max-batch-size", "16")
    used, count = re.subn(r"^( *)# (\w+( \{| \[|:) ?.*)$", r"\1\2", text, flags=re.MULTILINE)
    assert count == 7
    complete = loaded(tmp_path, model, used, auto_complete=False)
    assert complete.max_batch_size == 16
    assert complete.dynamic_batching.max_queue_delay_microseconds == 100
    assert list(complete.dynamic_batching.preferred_batch_size) == [16]
    (sample,) = complete.model_warmup
    assert (sample.batch_size, [(name, list(each.dims)) for name, each in sample.inputs.items()]) == (
        1,
        [(complete.input[0].name, list(complete.input[0].dims))],
    )
    assert (complete.response_cache.enable, complete.instance_group[0].count) == (True, 2)


def test_whole_shapes(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = made(capsys, str(model), "--max-batch-size=0")
    complete = loaded(tmp_path, model, text, auto_complete=True)
    assert (complete.max_batch_size, complete.WhichOneof("scheduling_choice")) == (0, None)
    assert [list(each.dims) for each in complete.input] == [[-1, 64]]
    assert [list(each.dims) for each in complete.output] == [[-1, 1], [-1, 10]]


def test_a_file_in_no_repository(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = made(capsys, str(model))
    assert 'name: "numbers"\n' in text
    assert 'default_model_filename: "numbers.onnx"\n' in text
    assert "# Its place in a model repository: numbers/config.pbtxt, beside numbers/1/numbers.onnx\n" in text
    assert max(map(len, text.splitlines())) <= 120


def test_into_a_file(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "config.pbtxt"
    assert made(capsys, str(model), "-o", str(output)) == ""
    assert output.read_text("utf-8") == made(capsys, str(model))
    assert cli.main(["config", str(model), "--output", str(output)]) == 2
    assert f"'{output}' already exists" in capsys.readouterr().err


def test_nothing_is_left_behind(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    made(capsys, str(model))
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "the following arguments are required: MODEL_FILE"),
        (["a.onnx", "b.onnx"], "unexpected argument: b.onnx"),
        (["nosuch.onnx"], "there is no file '.*nosuch.onnx'"),
        (["FILE", "--max-batch-size", "many"], "option '--max-batch-size': expected a number of 0 or more, got: many"),
        (["FILE", "--max-batch-size"], "option '--max-batch-size' requires a value"),
        (["FILE", "--nosuch"], "unknown option '--nosuch'"),
        (["FOLDER/weights.pth"], "no engine takes '.*weights.pth': 'weights.pth' is a PyTorch file"),
        (["FOLDER/notes.md"], "no engine takes '.*notes.md'; 'modserve engines' lists the formats"),
        (["FOLDER"], "'.*' is not a model: no engine recognises a file in it by its name"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_command_line(
    words: list[str], text: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("weights.pth", "notes.md"):
        (tmp_path / name).touch()
    words = [word.replace("FILE", str(model)).replace("FOLDER", str(tmp_path)) for word in words]
    assert cli.main(["config", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, re.match(f"modserve: {text}", err) is not None) == ("", True), err


@pytest.mark.parametrize(
    ("content", "words", "text"),
    [
        (b"\x08\x07nothing", [], "modserve: FILE: .*"),
        (None, ["--max-batch-size", "8"], "modserve: FILE: autofill failed for model 'resize'"),
    ],
    ids=["no model", "no batches"],
)
def test_a_model_that_cannot_be_loaded(
    content: bytes | None, words: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "resize.onnx"
    file.write_bytes(content or fixed_shape())
    assert cli.main(["config", str(file), *words]) == 1
    out, err = capsys.readouterr()
    assert not out
    assert re.match(text.replace("FILE", re.escape(str(file))), err), err
    assert "modserve-" not in err, "the temporary folder is nobody's business"


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert made(capsys, "--help") == config.PARSER.format_help()
    assert max(map(len, config.PARSER.format_help().splitlines())) <= 100
