"""Exported programs, compiled packages and classes in model.py, served by the pytorch backend."""
# mypy: allow-subclassing-any, allow-untyped-defs, allow-incomplete-defs

import hashlib
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from pytorch_models import export, floats, parameters, put, running, script, tensors

from modserve import ModserveError
from modserve.backends.pytorch.trust import is_arithmetic
from modserve.core.errors import Code

FORMULA = re.compile(r'"expr_str": "[^"]*"')
ROWS = {0: torch.export.Dim("rows", max=64)}


class Plain(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor):
        return self.linear(x)


class Nested(torch.nn.Module):
    def forward(self, x: torch.Tensor, pair: tuple[torch.Tensor, dict[str, torch.Tensor]], *, key: torch.Tensor):
        return {"sum": x + key, "parts": (pair[0] - x, {"inner": pair[1]["deep"] * 2})}


async def test_an_exported_program_needs_no_configuration(tmp_path: Path) -> None:
    module, x = Plain(), floats(3, 4)
    write = export(module, torch.ones(2, 4), dynamic={"x": ROWS})
    async with running(tmp_path, None, write) as model:
        assert model.reason == ""
        found = await model({"x": x})
        config = model.server.model("m").config
        for bad in (floats(2, 5), floats(2, 4).astype(np.float64)):
            with pytest.raises(ModserveError) as caught:
                await model({"x": bad})
            assert caught.value.code is Code.INVALID_ARG
    assert (config.max_batch_size, config.inputs[0].dims, config.outputs[0].name) == (4, (4,), "OUTPUT__0")
    with torch.no_grad():
        np.testing.assert_allclose(found["OUTPUT__0"], module(torch.from_numpy(x)).numpy(), rtol=1e-6)


NAMES = [
    (("x", "pair[0]", "pair[1][deep]", "key"), ("sum", "parts[0]", "parts[1][inner]")),
    (
        ("ARGS[0]", "ARGS[1][0]", "ARGS[1][1][deep]", "KWARGS[key]"),
        ("RESULT[sum]", "RESULT[parts][0]", "RESULT[parts][1][inner]"),
    ),
    (("INPUT__0", "INPUT__1", "INPUT__2", "INPUT__3"), ("OUTPUT__0", "OUTPUT__1", "OUTPUT__2")),
]


@pytest.mark.parametrize(("inputs", "outputs"), NAMES, ids=["arguments", "triton's", "indices"])
async def test_names_of_parts(tmp_path: Path, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
    ones = [torch.ones(4) for _ in range(4)]  # PyTorch takes one tensor in two places for one input
    config = tensors("input", *((name, "FP32", "4") for name in reversed(inputs))) + tensors(
        "output", *((name, "FP32", "4") for name in reversed(outputs))
    )
    values = {name: floats(4, seed=seed) for seed, name in enumerate(inputs)}
    x, first, deep, key = values.values()
    async with running(tmp_path, config, export(Nested(), ones[0], (ones[1], {"deep": ones[2]}), key=ones[3])) as model:
        assert model.reason == ""
        found = await model(values)
    for name, expected in zip(outputs, (x + key, first - x, deep * 2), strict=True):
        np.testing.assert_array_equal(found[name], expected)


class Changing(torch.nn.Module):
    """Counts in a buffer, writes into its input, and returns both."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor):
        self.total.add_(x)
        x.mul_(2)
        return self.total, x


async def test_an_exported_program_that_changes_what_it_has(tmp_path: Path) -> None:
    config = tensors("input", ("x", "FP32", "4")) + tensors("output", ("a__0", "FP32", "4"), ("b__1", "FP32", "4"))
    x = np.ones(4, np.float32)
    x.flags.writeable = False
    async with running(
        tmp_path, config + "instance_group [ { count: 1 kind: KIND_CPU } ]", export(Changing(), torch.ones(4))
    ) as model:
        found = [await model({"x": x}) for _ in range(3)]
    assert [each["a__0"].tolist() for each in found] == [[number] * 4 for number in (1, 2, 3)]
    assert [each["b__1"].tolist() for each in found] == [[2] * 4] * 3
    assert x.tolist() == [1] * 4


async def test_a_program_that_does_not_have_what_is_configured(tmp_path: Path) -> None:
    config = tensors("input", ("y", "FP32", "4"), ("z", "FP32", "4")) + tensors("output", ("o", "FP32", "3"))
    async with running(tmp_path, config, export(Plain(), torch.ones(4))) as model:
        assert "input 'z' is the model's input number 1, counted from 0, but it has 1 ('x')" in model.reason


class Constant(torch.nn.Module):
    def forward(self, x: torch.Tensor, times: int, y: torch.Tensor | None = None):
        return x * times


async def test_arguments_that_are_no_tensors_stay_as_they_were_exported(tmp_path: Path) -> None:
    async with running(tmp_path, 'backend: "pytorch"', export(Constant(), torch.ones(4), 3)) as model:
        assert model.reason == ""
        found = await model({"x": np.arange(4, dtype=np.float32)})
    assert found["OUTPUT__0"].tolist() == [0, 3, 6, 9]


async def test_precision_and_threads_of_an_exported_program(tmp_path: Path) -> None:
    module, x = Plain(), floats(3, 4)
    config = 'backend: "pytorch"\n' + parameters(PRECISION="bf16", INTRA_OP_THREAD_COUNT="1")
    async with running(tmp_path, config, export(module, torch.ones(2, 4), dynamic={"x": ROWS})) as model:
        assert model.reason == ""
        found = (await model({"x": x}))["OUTPUT__0"]
    assert found.dtype == np.float32
    with torch.no_grad():
        np.testing.assert_allclose(found, module(torch.from_numpy(x)).numpy(), atol=5e-2, rtol=5e-2)


class Pickled:
    """Unpickled, it would make a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


HARMFUL = "__import__('os').mkdir({!r})"


async def test_formulas_in_an_archive_are_not_run(tmp_path: Path) -> None:
    """PyTorch would evaluate them."""
    ran = tmp_path / "ran"

    def write(directory: Path) -> None:
        export(Plain(), torch.ones(2, 4), dynamic=(ROWS,))(directory)
        whole = directory / "whole.pt2"
        (directory / "model.pt2").rename(whole)
        formula = json.dumps(HARMFUL.format(str(ran)))
        with zipfile.ZipFile(whole) as source, zipfile.ZipFile(directory / "model.pt2", "w") as target:
            for name in source.namelist():
                content = source.read(name).decode("latin-1")
                target.writestr(name, FORMULA.sub(lambda _: f'"expr_str": {formula}', content).encode("latin-1"))

    async with running(tmp_path / "models", None, write) as model:
        assert "as the formula of a shape, which could run code: it is not loaded" in model.reason
    assert not ran.exists()


@pytest.mark.parametrize(
    ("formula", "harmless"),
    [
        ("Symbol('s17', positive=True, integer=True)", True),
        ("Mul(Integer(2), Max(Integer(1), TruncToInt(Mul(Float('1.5', precision=53), ToFloat(Symbol('s0'))))))", True),
        ("2*s0 + u1 <= 64", True),
        ("oo", True),
        ("open('/etc/passwd')", False),
        ("().__class__", False),
        ("Add('open(1)')", False),
        ("(lambda: 1)()", False),
        ("[x for x in (1,)]", False),
        ("s0.evil()", False),
        ("1" * 20_000, False),
        ("(" * 500, False),
        ("", False),
    ],
)
def test_what_a_formula_may_have(formula: str, harmless: bool) -> None:
    assert is_arithmetic(formula) is harmless


@pytest.mark.parametrize("entry", ["data/sample_inputs/model.pt", "data/constants/opaque_obj_0"])
async def test_pickles_in_an_archive_are_not_run(tmp_path: Path, entry: str) -> None:
    ran = tmp_path / "ran"

    def write(directory: Path) -> None:
        export(Plain(), torch.ones(4))(directory)
        whole = directory / "whole.pt2"
        (directory / "model.pt2").rename(whole)
        harmful = directory / "harmful.pt"
        torch.save(Pickled(ran), harmful)
        with zipfile.ZipFile(whole) as source, zipfile.ZipFile(directory / "model.pt2", "w") as target:
            for name in source.namelist():
                if not name.endswith(entry):
                    target.writestr(name, source.read(name))
            root = source.namelist()[0].partition("/")[0]
            target.writestr(f"{root}/{entry}", harmful.read_bytes())

    async with running(tmp_path / "models", None, write) as model:
        assert "which could run code: it is not loaded" in model.reason
    assert not ran.exists()


def _whole_module(path: Path) -> None:
    torch.save(Plain(), path)


def _old_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps({"a": 1}))


def _zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")


def _cut(path: Path) -> None:
    script(Plain())(path.parent)
    path.write_bytes(path.read_bytes()[:-300])


def _damaged(path: Path) -> None:
    script(Plain())(path.parent)
    with zipfile.ZipFile(path) as source:
        entries = {name: source.read(name) for name in source.namelist()}
    with zipfile.ZipFile(path, "w") as target:
        for name, content in entries.items():
            target.writestr(name, b"def forward(self: nonsense" if name.endswith(".py") else content)


BAD_FILES = {
    "weights": (
        lambda path: torch.save(Plain().state_dict(), path),
        ["contains weights without a model", 'runtime: "model.py"'],
    ),
    "whole module": (
        _whole_module,
        ["pickle of whole objects (", "Plain", "would run code from the file", "torch.export"],
    ),
    "old pickle": (_old_pickle, ["is a pickle, as written by old versions of torch.save", "torch.jit.script"]),
    "another zip": (_zip, ["a zip archive but not a PyTorch model: it contains readme.txt"]),
    "text": (lambda path: path.write_text("version https://git-lfs"), ["not a PyTorch model", "b'vers'"]),
    "empty": (lambda path: path.write_bytes(b""), ["is empty"]),
    "cut off": (_cut, ["is truncated or damaged: this zip archive of"]),
    "damaged": (_damaged, ["failed to load model 'm' from"]),
}


@pytest.mark.parametrize(("write", "parts"), BAD_FILES.values(), ids=BAD_FILES)
async def test_files_that_are_no_models(tmp_path: Path, write: Any, parts: list[str]) -> None:
    config = (
        'platform: "pytorch_libtorch"\n' + tensors("input", ("x", "FP32", "4")) + tensors("output", ("y", "FP32", "3"))
    )
    put(tmp_path, "good", config, script(Plain()))
    async with running(tmp_path, config, lambda directory: write(directory / "model.pt")) as model:
        for part in parts:
            assert part in model.reason
        response = await model.server.infer("good", {"x": floats(4)})
        assert response.outputs["y"].shape == (3,)


# Compilers

COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="PyTorch compiles with g++")


async def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    config = 'backend: "pytorch"\n' + parameters(TORCH_COMPILE="true")
    async with running(tmp_path, config, export(Plain(), torch.ones(4))) as model:
        assert "torch.compile needs a C++ compiler, but 'no-such-compiler' is not installed" in model.reason


COMPILE = """
import sys, warnings
import torch
warnings.simplefilter("ignore")

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.arange(4.0))

    def forward(self, x, parts):
        return {"sum": x + parts["a"] * self.weight, "weight": self.weight, "x": x}

rows = torch.export.Dim("rows", max=64)
x = torch.ones(2, 4)
shapes = {"x": {0: rows}, "parts": {"a": {0: rows}}}
program = torch.export.export(Net(), (x, {"a": torch.ones(2, 4)}), dynamic_shapes=shapes)
quick = {
    "aot_inductor.compile_wrapper_opt_level": "O0",
    "aot_inductor.precompile_headers": False,
    "cpp.vec_isa_ok": False,
}
torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[1], inductor_configs=quick)
"""


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled by another process, as they are. That takes long, so what was compiled once stays for other runs."""
    key = hashlib.sha256(f"{torch.__version__} {sys.version} {COMPILE}".encode()).hexdigest()[:16]
    kept = Path(tempfile.gettempdir()) / f"modserve-tests-{os.getuid()}-{key}.pt2"
    if not kept.exists() or kept.stat().st_uid != os.getuid():
        folder = tmp_path_factory.mktemp("compiled")
        subprocess.run(
            [sys.executable, "-c", COMPILE, str(folder / "package.pt2")],
            check=True,
            capture_output=True,
            env={"PATH": os.environ["PATH"], "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")},
        )
        shutil.copy(folder / "package.pt2", folder / "copy.pt2")
        shutil.move(folder / "copy.pt2", kept)
    return kept


@COMPILER
async def test_a_compiled_package(tmp_path: Path, package: Path) -> None:
    config = (
        'platform: "torch_aoti"\n'
        + tensors("input", ("ARGS[1][a]", "FP32", "-1, 4"), ("ARGS[0]", "FP32", "-1, -1"))
        + tensors(
            "output", ("RESULT[weight]", "FP32", "4"), ("RESULT[sum]", "FP32", "-1, 4"), ("RESULT[x]", "FP32", "-1, 4")
        )
    )

    def write(directory: Path) -> None:
        shutil.copy(package, directory / "model.pt2")

    put(tmp_path / "models", "silent", 'platform: "torch_aoti"', write)
    x, a = floats(3, 4), floats(3, 4, seed=1)
    async with running(tmp_path / "models", config, write) as model:
        assert model.reason == ""
        found = await model({"ARGS[0]": x, "ARGS[1][a]": a})
        found["RESULT[weight]"] = found["RESULT[weight]"].copy()
        again = await model({"ARGS[0]": x, "ARGS[1][a]": a})
        for bad in (floats(3, 5), floats(2, 4)):
            with pytest.raises(ModserveError, match="pytorch refused the request") as caught:
                await model({"ARGS[0]": bad, "ARGS[1][a]": a})
            assert caught.value.code is Code.INTERNAL
        silent = next(entry.reason for entry in model.server.index() if entry.name == "silent")
    assert "It takes ARGS[0], ARGS[1][a] (or INPUT__0, INPUT__1, …) and returns RESULT[sum]" in silent
    for each in (found, again):
        np.testing.assert_allclose(each["RESULT[sum]"], x + a * np.arange(4), rtol=1e-6)
        np.testing.assert_array_equal(each["RESULT[weight]"], np.arange(4))
        np.testing.assert_array_equal(each["RESULT[x]"], x)


async def test_a_directory_of_the_wrong_kind(tmp_path: Path) -> None:
    """An exported program under the name of a TorchScript model is told by what it holds."""

    def write(directory: Path) -> None:
        export(Plain(), torch.ones(2, 4), dynamic={"x": ROWS})(directory)
        (directory / "model.pt2").rename(directory / "model.pt")

    async with running(tmp_path, 'backend: "pytorch"', write) as model:
        assert model.reason == ""
        assert (await model({"x": floats(2, 4)}))["OUTPUT__0"].shape == (2, 3)


@pytest.mark.parametrize("write", [script(Plain()), export(Plain(), torch.ones(4))], ids=["TorchScript", "exported"])
async def test_where_instances_run(tmp_path: Path, write: Any) -> None:
    config = 'backend: "pytorch"\n' + tensors("input", ("x", "FP32", "4")) + tensors("output", ("y", "FP32", "3"))
    async with running(tmp_path / "a", config + "instance_group [ { kind: KIND_MODEL } ]", write) as model:
        assert model.reason == ""
        assert (await model({"x": floats(4)}))["y"].shape == (3,)
    if not torch.cuda.is_available():
        async with running(tmp_path / "b", config + "instance_group [ { kind: KIND_GPU } ]", write) as model:
            assert "specifies GPU instances, but 0 GPUs are available here" in model.reason
