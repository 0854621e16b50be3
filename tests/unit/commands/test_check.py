"""``modserve check``: what it prints, and how it ends."""

import hashlib
import json
import pickle
import re
from pathlib import Path
from typing import Any

import mistakes
import pytest
import skops.io
from mistakes import EXAMPLES, MISTAKES, MODEL, Mistake, write
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from kept_logging import untouched_logging
from modserve import cli
from modserve.commands.check import command as check

pytestmark = pytest.mark.usefixtures(untouched_logging.__name__)

ENSEMBLE = {"pipeline/config.pbtxt": mistakes.MISTAKES[8].files["pipeline/config.pbtxt"], "pipeline/1/.keep": b""}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory; commands name the repository in it without a path before it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MODSERVE_LOG_VERBOSE", raising=False)
    (tmp_path / "model_repository").mkdir()
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The exit code and what is printed."""
    code = cli.main(["check", *words])
    out, err = capsys.readouterr()
    assert not err
    return code, out


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    _, out = said(capsys, *words, "--json")
    result: dict[str, Any] = json.loads(out)
    return result


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.title)
def test_what_the_command_says_of_mistakes(mistake: Mistake, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder / "model_repository", mistake.files)
    code, out = said(capsys, "model_repository", *mistake.options)
    assert code == mistake.code
    shown = re.sub(r"(installed backends are: )[^\n;]*", r"\1…", out)
    assert shown == mistake.output


@pytest.mark.parametrize("options", [[], ["--load"]], ids=["checked", "loaded"])
def test_the_examples_have_no_problems(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out = said(capsys, str(EXAMPLES), *options)
    assert code == 0
    end = "loaded: no problems" if options else "checked: no problems (files read, nothing loaded; --load loads)"
    assert out == f"5 models {end}\n"


def test_for_programs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder / "model_repository", {**MISTAKES[0].files, "fine/1/model.onnx": MODEL, "alone.onnx": MODEL})
    result = document(capsys, "model_repository")
    assert {key: result[key] for key in ("ok", "loaded", "problems", "notes")} == {
        "ok": False,
        "loaded": False,
        "problems": 4,
        "notes": 1,
    }
    (remark,) = result["remarks"]
    assert "alone.onnx' is ignored: a model is a folder" in remark
    fine, resnet = result["models"]
    assert fine == {
        "name": "fine",
        "path": str(folder / "model_repository" / "fine"),
        "versions": [1],
        "compared": 0,
        "ok": True,
        "problems": [],
        "notes": [],
    }
    first = resnet["problems"][0]
    assert first == {
        "file": str(folder / "model_repository" / "resnet" / "config.pbtxt"),
        "line": 2,
        "column": 1,
        "text": "unknown field 'max_batchsize'; did you mean 'max_batch_size'?",
        "excerpt": ["max_batchsize: 8", "^"],
        "suggestion": "max_batch_size",
        "advice": "",
    }
    assert [each["suggestion"] for each in resnet["problems"]] == ["max_batch_size", "TYPE_FP32", None, None]


def test_more_than_one_problem_of_a_model_that_can_be_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rules, the backend, the versions and the files are all looked at, whatever the others are like."""
    output = 'output [ { name: "O" data_type: TYPE_FP32 dims: [ 1 ] label_filename: "labels.txt" } ]'
    text = f'backend: "onnxruntme"\nmax_batch_size: -1\n{output}\n'
    write(folder / "model_repository", {"m/config.pbtxt": text})
    (model,) = document(capsys, "model_repository")["models"]
    places = [(each["line"], each["column"]) for each in model["problems"]]
    assert places == [(2, 1), (1, 1), (None, None), (None, None)]
    assert model["problems"][1]["suggestion"] == "onnxruntime"
    assert "labels.txt" in model["problems"][3]["text"]


def test_what_only_the_engine_can_tell(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = {"broken/1/model.onnx": b"\x08\x07" + bytes(100), "broken/2/model.onnx": b"\x08\x07" + bytes(99)}
    write(folder / "model_repository", broken | {"fine/1/model.onnx": MODEL})
    assert said(capsys, "model_repository")[0] == 0
    code, out = said(capsys, "model_repository", "--load")
    assert code == 1
    assert out.endswith("\n2 models loaded: 1 problem in 1 model, 2 notes\n")
    assert "\n    " not in out.partition("error:")[0]
    assert out.startswith("model_repository/broken/2: error: ")


def test_what_an_engine_warns_of_is_a_note(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = 'parameters { key: "intra_op_threads" value { string_value: "2" } }'
    write(folder / "model_repository", {"fine/config.pbtxt": text, "fine/1/model.onnx": MODEL})
    code, out = said(capsys, "model_repository", "--load")
    assert code == 0
    assert (
        "note: model 'fine': parameter 'intra_op_threads' has no effect: backend 'onnxruntime' does not know it; did "
        "you mean 'intra_op_thread_count'?\n"
    ) in out


def test_a_folder_that_is_being_copied(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "model_repository" / "resnet.tmp").mkdir()
    (folder / "model_repository" / ".bert").mkdir()
    code, out = said(capsys, "model_repository")
    assert code == 1
    assert "unable to find backend 'tmp'" in out
    assert (
        "\n    it comes from the end of the folder's name, since that has neither config.pbtxt nor a model file; "
        in out
    )
    assert "bert" not in out


def test_a_plan_is_refused_before_anything_is_loaded(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder / "model_repository", {"bert/1/model.plan": b"plan"})
    code, out = said(capsys, "model_repository")
    assert (code, out.count("error: ")) == (1, 1)
    assert "is a TensorRT engine. It needs the kind of NVIDIA GPU" in out


def test_a_pickle_is_refused_before_anything_is_loaded(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder / "model_repository", {"digits/1/model.joblib": pickle.dumps(LogisticRegression())})
    code, out = said(capsys, "model_repository")
    assert (code, out.count("error: ")) == (1, 1)
    assert "is a pickle, and loading a pickle runs its code. If you trust its author, allow pickles with" in out
    code, out = said(capsys, "model_repository", "--backend-config=sklearn,allow-pickle=1")
    assert (code, out) == (0, "1 model checked: no problems (files read, nothing loaded; --load loads)\n")


def test_a_python_model_without_tensors_is_told_what_to_write(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
    write(folder / "model_repository", {"m/1/model.py": text})
    code, out = said(capsys, "model_repository", "--load")
    assert code == 0
    assert "note: model 'm' has no inputs and no outputs: neither its configuration nor the auto_complete_config" in out
    assert (
        '; or write m/config.pbtxt, with your names, types and dims (-1 is any size):\n    backend: "python"\n' in out
    )


def test_types_that_skops_does_not_trust_are_refused_before_anything_is_loaded(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forest = RandomForestClassifier(n_estimators=1).fit([[0.0], [1.0]], [0, 1])
    write(folder / "model_repository", {"forest/1/model.skops": skops.io.dumps(forest)})
    code, out = said(capsys, "model_repository")
    assert code == 1
    assert "allow them with --backend-config=sklearn,trusted=sklearn.tree._tree.Tree" in out


def test_a_configured_routing_to_a_version_that_is_not_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    routing = 'parameters { key: \'routing\' value { string_value: \'{"split": {"1": 9, "2": 1}}\' } }'
    files: dict[str, str | bytes] = {
        "fine/config.pbtxt": f"version_policy {{ all {{ }} }}\n{routing}\n",
        "fine/1/model.onnx": MODEL,
    }
    write(folder / "model_repository", files)
    code, out = said(capsys, "model_repository")
    assert code == 0
    assert ":2:1: note: routing.split.2 is version 2, which is not there; the versions are: 1. " in out
    write(folder / "model_repository", {"fine/2/model.onnx": MODEL})
    assert "note" not in said(capsys, "model_repository")[1]


def test_each_version_s_problems_are_said_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {**MISTAKES[9].files, "simple/2/model.onnx": MODEL}
    files["simple/config.pbtxt"] = f"{files['simple/config.pbtxt']!s}version_policy {{ all {{ }} }}\n"
    write(folder / "model_repository", files)
    assert document(capsys, "model_repository", "--load")["problems"] == 2


@pytest.mark.parametrize("mode", ["thread", "process"])
def test_a_failure_of_a_model_s_code_is_said_once(mode: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model's own remarks are notes; the traceback is none, for the problem has what users need of it."""
    code = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        pb_utils.Logger.log_error("no words here")
        open("nosuch.txt")
    def execute(self, requests):
        return []
"""
    parameter = f"parameters {{ key: 'EXECUTION_MODE' value {{ string_value: '{mode}' }} }}"
    files: dict[str, str | bytes] = {
        "words/1/model.py": code,
        "words/config.pbtxt": f"backend: 'python' {parameter}\n",
    }
    write(folder / "model_repository", files)
    (words,) = document(capsys, "model_repository", "--load")["models"]
    (problem,) = words["problems"]
    assert problem["text"] == "FileNotFoundError: [Errno 2] No such file or directory: 'nosuch.txt'"
    assert problem["advice"] == f"At:\n  {folder}/model_repository/words/1/model.py(7): initialize"
    assert [note["text"] for note in words["notes"] if "no inputs and no outputs" not in note["text"]] == [
        "model 'words', instance 'words_0': no words here"
    ]


def test_an_ensemble_of_a_model_with_problems(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The ensemble's own line says that it is concerned, and leaves the reasons to the model."""
    text = str(ENSEMBLE["pipeline/config.pbtxt"]).replace("simpel", "resnet")
    write(folder / "model_repository", {**MISTAKES[0].files, **ENSEMBLE, "pipeline/config.pbtxt": text})
    pipeline, resnet = document(capsys, "model_repository")["models"]
    (problem,) = pipeline["problems"]
    assert problem["text"] == "ensemble 'pipeline' depends on 'resnet' which has no loaded version."
    assert (problem["line"], problem["advice"]) == (7, "")
    assert len(resnet["problems"]) == 4


def test_a_model_in_two_repositories(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in ("model_repository", "other"):
        write(folder / place, {"m/1/model.onnx": MODEL})
    code, out = said(capsys, "model_repository", "other")
    assert code == 1
    assert out.startswith("m: error: model appears in two or more repositories\n")


def test_no_models(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = said(capsys, "model_repository")
    assert code == 0
    assert out == (
        "note: no models in 'model_repository': each of its folders would be a model\n"
        "0 models checked: no problems, 1 note\n"
    )


def test_the_server_s_options_count(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder / "model_repository", {"m/1/model.onnx": MODEL})
    (folder / "modserve.yaml").write_text("model-repository: model_repository\ndisable-auto-complete-config: true\n")
    code, out = said(capsys, "--config", "modserve.yaml")
    assert code == 1
    assert "there is no configuration, and automatic completion is off" in out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "no directory given"),
        (["nosuch"], "cannot read model repository 'FOLDER/nosuch': No such file or directory"),
        (["model_repository", "--jason"], "unknown option '--jason'"),
    ],
    ids=["nothing", "no such directory", "no such option"],
)
def test_what_cannot_be_checked(
    words: list[str], text: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MODSERVE_MODEL_REPOSITORY", raising=False)
    assert cli.main(["check", *words]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith(f"modserve: {text.replace('FOLDER', str(folder))}")


def test_colours_are_for_terminals(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder / "model_repository", {**MISTAKES[10].files, "b/config.pbtxt": "nosuch: 1\n"})
    assert "\x1b" not in said(capsys, "model_repository")[1]
    monkeypatch.setattr(check, "takes_colours", lambda: True)
    coloured = said(capsys, "model_repository")[1]
    assert "\x1b[1mmodel_repository/b/config.pbtxt:1:1:\x1b[0m \x1b[1;31merror:\x1b[0m unknown field" in coloured
    assert "\x1b[1;36mnote:\x1b[0m" in coloured


def test_what_a_file_says_is_not_obeyed_by_the_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder / "model_repository", {"b/config.pbtxt": b'backend: "\x1b[2J\xff"\n'})
    code, out = said(capsys, "model_repository")
    assert code == 1
    assert "\x1b" not in out


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = said(capsys, "--help")
    assert (code, out) == (0, check.PARSER.format_help())
    assert max(map(len, out.splitlines())) <= 100


# Files, digests, code and links


SIMPLE: dict[str, str | bytes] = {"simple/config.pbtxt": 'backend: "onnxruntime"\n', "simple/1/model.onnx": MODEL}


def test_a_file_for_the_warm_up_that_is_not_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = """\
backend: "onnxruntime"
model_warmup {
  name: "usual"
  batch_size: 1
  inputs { key: "INPUT0" value { data_type: TYPE_INT32 dims: [ 16 ] input_data_file: "absent" } }
}
"""
    write(folder / "model_repository", SIMPLE | {"simple/config.pbtxt": config})
    code, out = said(capsys, "model_repository")
    assert code == 1
    assert re.match(
        r"model_repository/simple/config.pbtxt:5:\d+: error: warm-up sample 'usual', input 'INPUT0': there is no file "
        r"'model_repository/simple/warmup/absent'\n",
        out,
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (r"a\0b", "has a null character, and no file has that"),
        ("a" * 300, "is longer than the name of any file"),
        ("a/" * 2100, "is longer than the name of any file"),
        ("../simple/1/model.onnx", "is outside version directory"),
    ],
    ids=["null", "long", "deep", "outside"],
)
def test_names_that_no_file_can_have(name: str, text: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = f'backend: "onnxruntime"\ndefault_model_filename: "{name}"\n'
    write(folder / "model_repository", SIMPLE | {"simple/config.pbtxt": config})
    code, out = said(capsys, "model_repository")
    assert code == 1
    assert out.startswith("model_repository/simple/config.pbtxt:2:1: error: model file path '")
    assert text in out


def test_digests(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = folder / "model_repository"
    write(root, SIMPLE)
    assert said(capsys, "model_repository")[0] == 0
    code, out = said(capsys, "model_repository", "--require-digests")
    assert code == 1
    assert out.startswith(
        "model_repository/simple: error: model 'simple' version 1 is not loaded, since the server runs with "
        "--require-digests: there is no SHA256 digest of: 1/model.onnx, config.pbtxt\n"
        "    to trust the files as they are: cd "
    )
    sums = {name: hashlib.sha256((root / name).read_bytes()).hexdigest() for name in SIMPLE}
    (root / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()))
    assert said(capsys, "model_repository", "--require-digests") == (
        0,
        "1 model checked: no problems (files read, nothing loaded; --load loads)\n",
    )
    (root / "simple" / "1" / "model.onnx").write_bytes(MODEL + b"\0")
    code, out = said(capsys, "model_repository")
    assert code == 1
    assert "mismatched SHA256 of 'model_repository/simple/1/model.onnx': expected " in out


def test_code(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = " ".join(f'{side} {{ name: "A" data_type: TYPE_FP32 dims: 1 }}' for side in ("input", "output"))
    write(folder / "model_repository", {"lines/config.pbtxt": tensors, "lines/1/model.py": "raise SystemExit"})
    assert said(capsys, "model_repository")[0] == 0
    for options in ([], ["--load"]):
        code, out = said(capsys, "model_repository", "--deny-code", *options)
        assert code == 1
        assert "model 'lines' is not loaded, since the server runs with --deny-code: a Python model is a program" in out


def test_links_out_of_the_repository(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder / "model_repository", SIMPLE)
    (folder / "model_repository" / "simple" / "1" / "model.onnx").rename(folder / "weights")
    (folder / "model_repository" / "simple" / "1" / "model.onnx").symlink_to(folder / "weights")
    code, out = said(capsys, "model_repository", "--load")
    assert code == 1
    assert "'model_repository/simple/1/model.onnx' is a link out of the model repository, to" in out
    assert said(capsys, "model_repository", "--load", "--allow-outside-symlinks")[0] == 0


def test_a_model_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "sums.onnx").write_bytes(MODEL)
    code, out = said(capsys, "--model-file", "sums.onnx", "--load")
    assert code == 0
    assert out.startswith(f"{folder}/sums.onnx: note: max_batch_size of model 'sums' is set to 4")


# Places and advice


def test_a_gpu_that_is_not_there_has_a_place(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    groups = "instance_group [\n{ kind: KIND_CPU },\n{\nkind: KIND_GPU\n{}\n}\n]\n"
    for model, gpus in (("any", ""), ("listed", "gpus: [ 1 ]")):
        write(folder / "model_repository", {f"{model}/1/model.onnx": MODEL})
        text = f'backend: "onnxruntime"\n{groups.replace("{}", gpus)}'
        (folder / "model_repository" / model / "config.pbtxt").write_text(text)
    any_gpu, listed = (model["problems"] for model in document(capsys, "model_repository")["models"])
    assert [(each["line"], each["column"]) for each in (*any_gpu, *listed)] == [(5, 1), (6, 1)]
    assert "specifies GPU instances, but 0 GPUs are available here" in any_gpu[0]["text"]
    assert "specifies GPU 1, but 0 GPUs are available here" in listed[0]["text"]


def test_too_many_instances_are_not_counted_one_by_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = 'backend: "onnxruntime"\ninstance_group { count: 2000000000 }\n'
    write(folder / "model_repository", {"m/config.pbtxt": text, "m/1/model.onnx": MODEL})
    (model,) = document(capsys, "model_repository")["models"]
    assert [each["line"] for each in model["problems"]] == [2]


def test_a_file_beside_its_version_is_one_problem(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder / "model_repository", {"m/model.onnx": MODEL})
    code, out = said(capsys, "model_repository")
    assert code == 1
    assert out == (
        "model_repository/m: error: move 'model.onnx' to '1/model.onnx': model files belong in the folder of their "
        "version\n    'model_repository/m' holds: model.onnx\n\n1 model checked: 1 problem in 1 model\n"
    )


def test_versions_that_are_not_served_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = {f"m/{version}/model.onnx": MODEL for version in ("1", "2", "v3", "007")}
    write(folder / "model_repository", model)
    said_of = said(capsys, "model_repository")[1]
    for text in (
        "note: version 1 in the model's folder is not served: version_policy selects 2; version_policy { all { } } in",
        "note: folder 'v3' is not a version: versions are named by whole numbers, such as '3'",
        "note: folder '007' is not a version: versions are named by whole numbers, such as '7'",
    ):
        assert text in said_of
    write(folder / "model_repository", {"m/config.pbtxt": "version_policy { latest { num_versions: 1 } }"})
    assert "is not served" not in said(capsys, "model_repository")[1], "it was asked for"
