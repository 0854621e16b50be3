"""Decorated functions as a model repository: their configurations, and the files that bring them into a worker."""

import json
import subprocess
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format

from modserve import config as model_config
from modserve import model
from modserve.backends.python.functions import FunctionRepository
from modserve.backends.python.worker import importing
from modserve.backends.python.worker.decorator import definition_of
from modserve.core.errors import ModserveError
from modserve.core.loading import Listing

FUNCTIONS = """
import modserve

print("a line that is no JSON")


@modserve.model(max_batch_size=4, instances=2)
def upper(texts: list[str]) -> list[str]:
    return [text.upper() for text in texts]


@modserve.model(isolation="thread")
def length(text: str) -> int:
    return len(text)


class Models:
    inner = length


def plain(text: str) -> str:
    return text
"""


@model
def double(x: float) -> float:
    return 2 * x


@model(isolation="thread")
def in_thread(x: float) -> float:
    return x


@model(isolation="inline")
def on_loop(x: float) -> float:
    return x


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "some_functions.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


async def listing(target: object) -> Listing:
    repository = FunctionRepository({"m": target}, model_config.from_json)
    assert await repository.names() == ["m"]
    (only,) = (await repository.look()).values()
    return only


def config(listing: Listing) -> dict[str, Any]:
    assert isinstance(listing.content, bytes), listing.content
    draft = model_config.decode(listing.content, listing.path / "config.pbtxt", "m")
    return json_format.MessageToDict(draft.message, preserving_proto_field_name=True)


async def model_file(target: object) -> str:
    """The model.py of a fetched version, which is gone after it is released."""
    repository = FunctionRepository({"m": target}, model_config.from_json)
    listings = await repository.look()
    lease = await repository.fetch(listings["m"], 1)
    text = (lease.path / "1" / "model.py").read_text()
    assert lease.path.name == "m"
    await lease.release()
    assert not lease.path.parent.exists()
    return text


async def test_an_object_has_the_configuration_of_its_decorator() -> None:
    assert config(await listing(double)) == {
        "backend": "python",
        "input": [{"name": "x", "data_type": "TYPE_FP64", "dims": ["1"]}],
        "output": [{"name": "output", "data_type": "TYPE_FP64", "dims": ["1"]}],
        "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
    }


async def test_a_place_is_described_by_a_process_of_its_own(folder: Path) -> None:
    described = await listing("some_functions:upper")
    assert config(described)["max_batch_size"] == 4
    assert config(described)["instance_group"] == [{"count": 2, "kind": "KIND_CPU"}]
    assert "dynamic_batching" in config(described)
    assert "some_functions" not in sys.modules
    assert described.path == folder / "some_functions:upper"


async def test_a_place_is_described_again_when_its_file_has_changed(folder: Path) -> None:
    repository = FunctionRepository({"m": "some_functions.py:length"}, model_config.from_json)
    first = (await repository.look())["m"]
    assert config(first)["parameters"] == {"EXECUTION_MODE": {"string_value": "thread"}}
    assert (await repository.look())["m"].marks == first.marks
    (folder / "some_functions.py").write_text(FUNCTIONS.replace("-> int", "-> float"))
    second = (await repository.look())["m"]
    assert second.marks != first.marks
    assert config(second)["output"][0]["data_type"] == "TYPE_FP64"


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("no_module:f", "ImportError: there is no module 'no_module' in {} or among the installed packages"),
        ("some_functions:lenght", "there is no 'lenght' in {}/some_functions.py; did you mean 'length'?"),
        ("some_functions:plain", "TypeError: 'plain' in {}/some_functions.py is not a model; decorate it with"),
        ("no_file.py:f", "ImportError: there is no file {}/no_file.py"),
        ("raises:f", "ZeroDivisionError: division by zero\n\nAt:\n  {}/raises.py(1): <module>"),
        ("leaves:f", "cannot import 'leaves:f': the process ended with status 7\n  goodbye"),
    ],
)
async def test_a_place_that_cannot_be_imported_is_a_model_that_says_why(folder: Path, place: str, text: str) -> None:
    (folder / "raises.py").write_text("1 / 0")
    (folder / "leaves.py").write_text("import os; print('goodbye', flush=True); os._exit(7)")
    content = (await listing(place)).content
    assert isinstance(content, ModserveError)
    assert content.message.startswith(f"cannot import '{place}': ")
    assert text.format(folder) in content.message


async def test_a_place_becomes_a_file_that_imports_it(folder: Path) -> None:
    text = await model_file("some_functions:Models.inner")
    assert "import_target('some_functions:Models.inner', " in text
    made = types.ModuleType("made")
    try:
        exec(text, vars(made))
        assert definition_of(vars(made)["model"]) is not None
        assert vars(made)["model"]("four") == 4
    finally:
        sys.modules.pop("some_functions", None)


async def test_an_object_for_a_process_becomes_a_file_that_imports_it() -> None:
    here = Path(__file__).parent
    assert f"import_target('{__name__}:double', {str(here)!r})" in await model_file(double)


async def test_an_object_of_a_script_is_imported_from_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = types.ModuleType("__main__")
    script.__file__ = str(tmp_path / "script.py")
    monkeypatch.setitem(sys.modules, "__main__", script)

    def f(x: float) -> float:
        return x

    f.__module__, f.__qualname__ = "__main__", "f"
    vars(script)["f"] = model(f)
    assert f"import_target('script.py:f', {str(tmp_path)!r})" in await model_file(f)


@pytest.mark.parametrize("inside", [in_thread, on_loop])
async def test_an_object_inside_the_server_is_used_as_it_is(inside: Any) -> None:
    before = set(importing.HELD)
    repository = FunctionRepository({"m": inside}, model_config.from_json)
    (target,) = set(importing.HELD) - before
    assert importing.import_target(target, "") is inside
    lease = await repository.fetch((await repository.look())["m"], 1)
    assert f"import_target({target!r}, " in (lease.path / "1" / "model.py").read_text()
    await lease.release()
    del repository
    assert set(importing.HELD) == before


def test_a_module_is_read_again_when_it_has_changed(folder: Path) -> None:
    try:
        first = importing.import_target("some_functions:length", str(folder))
        assert importing.import_target("some_functions:length", str(folder)) is first
        (folder / "some_functions.py").write_text(FUNCTIONS.replace("len(text)", "len(text) + 1"))
        assert importing.import_target("some_functions:length", str(folder))("four") == 5
    finally:
        sys.modules.pop("some_functions", None)


def refusal(target: object) -> str:
    with pytest.raises(ModserveError) as caught:
        FunctionRepository({"m": target}, model_config.from_json)
    return caught.value.message


def test_an_object_that_no_worker_can_import_is_refused() -> None:
    @model
    def local(x: float) -> float:
        return x

    assert refusal(local) == (
        "model 'm' cannot run in a process of its own, because that process cannot import it: expected an object "
        "at the top level of a module in a file, or isolation='thread'"
    )
    assert "expected an object decorated with modserve.model" in refusal(refusal)


def test_workers_start_no_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "modserve_worker", types.ModuleType("modserve_worker"))
    assert "in a script, put everything except the definitions of models below 'if __name__" in refusal(double)


async def test_a_configuration_that_is_wrong_is_the_model_s_failure() -> None:
    @model(config={"colour": "red"}, isolation="thread")
    def f(x: float) -> float:
        return x

    @model(config={"parameters": {"a": {"string_value": {1}}}}, isolation="thread")
    def g(x: float) -> float:
        return x

    for each, text in ((f, "colour"), (g, "the configuration of the decorator is not JSON")):
        content = (await listing(each)).content
        assert isinstance(content, ModserveError)
        assert text in content.message


STRANGER = """
import importlib.util, sys
folder, site, file = sys.argv[1:]
sys.path.append(site)
assert importlib.util.find_spec("modserve") is None
sys.path.append(folder + "/importable")
from modserve_worker import model
loaded = model.load(file, "m", None)
print(loaded.auto_complete_config('{"input": [], "output": []}'))
"""


def test_the_decorator_is_there_in_an_interpreter_without_modserve(tmp_path: Path) -> None:
    site, file = tmp_path / "site", tmp_path / "m" / "1" / "model.py"
    site.mkdir()
    file.parent.mkdir(parents=True)
    for each in Path(np.__file__).parents[1].glob("numpy*"):
        (site / each.name).symlink_to(each)
    file.write_text("import modserve\n\n\n@modserve.model\ndef f(x: float) -> float:\n    return x\n")
    arguments = [str(Path(importing.__file__).parent), str(site), str(file)]
    command = [sys.executable, "-I", "-S", "-c", STRANGER, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(result.stdout)["input"] == [{"name": "x", "data_type": "TYPE_FP64", "dims": [1]}]


def test_threads_that_import_a_changed_module_wait_until_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "crowd", crowd := types.ModuleType("crowd"))
    vars(crowd).update(reading=threading.Event(), others=threading.Event())
    code = "import crowd, modserve\n{}@modserve.model\ndef f(x: float) -> float: return {}\n"
    file = tmp_path / "crowded.py"
    file.write_text(code.format("", "1.0"))
    try:
        importing.import_target("crowded:f", str(tmp_path))
        file.write_text(code.format("crowd.reading.set()\ncrowd.others.wait()\n", "2.0"))
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(importing.import_target, "crowded:f", str(tmp_path))
            crowd.reading.wait()
            second = pool.submit(lambda: importing.import_target("crowded:f", str(tmp_path))(1.0))
            wait([second], 0.05)  # one that does not wait has the old function by then
            crowd.others.set()
            assert first.result()(1.0) == second.result() == 2.0
    finally:
        sys.modules.pop("crowded", None)
