"""What a model.py can import, alone in a process and beside other models."""

import importlib.util
import itertools
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from modserve.backends.python.worker import host, model
from modserve.backends.python.worker.errors import ModelError

EMPTY = "\nclass TritonPythonModel:\n    def execute(self, requests): pass\n"
WORKER = Path(model.__file__).parent


def write(root: Path, **files: str) -> str:
    """Files of one model; ``__`` in a name is a directory. Its model.py."""
    for name, text in files.items():
        path = root / "1" / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return str(root / "1" / "model.py")


def load(path: str, of_host: Any = None) -> Any:
    return model.load(path, "m", of_host, isolated=True).module


def test_models_have_modules_of_the_same_name(tmp_path: Path) -> None:
    code = "import utils\nfrom utils import NAME as a\n" + EMPTY
    both = [
        load(write(tmp_path / name, model=code, utils=f"import shared\nNAME = '{name}'", shared="")) for name in "ab"
    ]
    assert [module.utils.NAME for module in both] == ["a", "b"]
    assert [module.a for module in both] == ["a", "b"]
    assert both[0].utils.shared is not both[1].utils.shared
    assert "shared" not in sys.modules


def test_late_imports(tmp_path: Path) -> None:
    code = "def late():\n    import utils\n    from utils import late\n    return late()\n" + EMPTY
    utils = "def late():\n    import deeper\n    return deeper.NAME\n"
    both = [load(write(tmp_path / name, model=code, utils=utils, deeper=f"NAME = '{name}'")) for name in "ab"]
    assert [module.late() for module in both] == ["a", "b"]


def test_packages(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m",
        model="import pack.deep.leaf\nimport pack.deep as deep\nfrom pack import other\nfrom pack.deep.leaf import *\n"
        "from . import beside\nfrom .pack.deep import leaf\n" + EMPTY,
        pack____init__="from .deep import leaf\n",
        pack__deep____init__="",
        pack__deep__leaf="from ..other import NAME\nfrom pack import other\nimport pack.other as again\nLEAF = 'leaf'",
        pack__other="NAME = 'other'\n",
        beside="",
    )
    (tmp_path / "m" / "above.py").write_text("NAME = 'above'", encoding="utf-8")
    module = load(path)
    leaf = module.pack.deep.leaf
    assert (leaf.NAME, module.LEAF, module.deep, module.leaf) == ("other", "leaf", module.pack.deep, leaf)
    assert leaf.other is leaf.again is module.other
    assert module.beside.__name__.endswith(".beside")


def test_the_directory_of_the_model_counts_too(tmp_path: Path) -> None:
    path = write(tmp_path / "m", model="import above\n" + EMPTY)
    (tmp_path / "m" / "above.py").write_text("NAME = 'above'", encoding="utf-8")
    assert load(path).above.NAME == "above"


def test_search_paths(tmp_path: Path) -> None:
    path = write(tmp_path / "m", model="import elsewhere\n" + EMPTY)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "elsewhere.py").write_text("NAME = 1", encoding="utf-8")
    made = model.load(path, "m", None, isolated=True, search_paths=[str(tmp_path / "lib")])
    assert made.module.elsewhere.NAME == 1


def test_the_standard_library_and_installed_packages_stay(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m",
        model="import queue\nimport ml_dtypes\nimport numpy as np\nimport os.path\n"
        "import triton_python_backend_utils as pb_utils\nimport c_python_backend_utils as c\n" + EMPTY,
        queue="raise ValueError",
    )
    (tmp_path / "m" / "1" / "ml_dtypes").mkdir()  # a directory of other files
    module = load(path)
    assert module.queue is sys.modules["queue"]
    assert module.ml_dtypes is sys.modules["ml_dtypes"]
    assert module.np is sys.modules["numpy"]
    assert module.pb_utils is module.c
    assert module.pb_utils.Tensor is model.InferenceResponse.__init__.__globals__["Tensor"]  # type: ignore[attr-defined]


def test_a_directory_without_init_is_a_package_where_no_other_is_meant(tmp_path: Path) -> None:
    path = write(tmp_path / "m", model="import helpers.one\n" + EMPTY, helpers__one="NAME = 1\n")
    assert load(path).helpers.one.NAME == 1


def test_a_module_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No module named 'nowhere'") as caught:
        load(write(tmp_path / "m", model="import utils\n", utils="import nowhere\n"))
    first, second = caught.value.message.strip().splitlines()[-2:]
    assert first.endswith("utils.py(1): <module>")
    assert second.endswith("model.py(1): <module>")


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    for name in "abc":  # as long as each other, and as old to the second
        module = load(write(tmp_path / "m", model=f"def name(): return '{name}'\n{EMPTY}"))
        assert module.name() == name
    assert not (tmp_path / "m" / "1" / "__pycache__").exists()


def test_every_module_of_a_model_has_its_host_and_directory(tmp_path: Path) -> None:
    of_host: Any = object()
    code = "import triton_python_backend_utils as pb_utils\ndirectory = pb_utils.get_model_dir\n"
    module = load(
        write(
            tmp_path / "m",
            model=f"import utils\n{code}DIRECTORY = directory()\ndef get_directory(): return DIRECTORY\n{EMPTY}",
            utils=code,
        ),
        of_host,
    )
    assert module.__modserve_host__ is module.utils.__modserve_host__ is of_host
    assert module.get_directory() == str(tmp_path / "m" / "1")
    assert eval("directory()", vars(module.utils)) == module.DIRECTORY


def test_the_code_of_each_model_has_its_own_host(tmp_path: Path) -> None:
    code = """
import threading
import helper
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        pb_utils.Logger.log("initialize")
    def execute(self, requests):
        pb_utils.Logger.log("execute")
        for target in (self.log, helper.log):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
    def log(self):
        pb_utils.Logger.log("thread")
"""
    helper = "import triton_python_backend_utils as pb_utils\ndef log(): pb_utils.Logger.log('helper')\n"
    logs: Any = [Log(), Log()]
    both = [
        model.load(write(tmp_path / name, model=code, helper=helper), name, log, isolated=True)
        for name, log in zip("ab", logs, strict=True)
    ]
    for made in both:
        made.initialize({})
    both[0].execute([])
    assert [log.lines for log in logs] == [["initialize", "execute", "thread", "helper"], ["initialize"]]
    with pytest.raises(RuntimeError):
        host.current()


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, level: str, message: str) -> None:
        self.lines.append(message)


ALONE = """
import sys
sys.path.insert(0, sys.argv[2])
sys.path.insert(0, "/nowhere/site-packages")
from modserve_worker import model
made = model.load(sys.argv[1], "m", None)
module = made.module
assert module.__name__ == "1.model", module.__name__
assert module.utils is sys.modules["utils"]
assert module.beside is sys.modules["1.beside"]
assert module.late() == "utils"
assert module.queue.__file__ != module.utils.__file__.replace("utils", "queue")
assert module.get_model_dir() == module.DIRECTORY
assert sys.modules["triton_python_backend_utils"].Tensor.__module__ == "modserve_worker.tensor"
assert not [name for name in sys.modules if name.partition(".")[0] in ("modserve", "ml_dtypes", "asyncio.tasks")]
made.initialize({})
print("good")
"""


def test_a_model_alone_in_a_process(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m",
        model="import utils, queue\nfrom . import beside\nfrom triton_python_backend_utils import get_model_dir\n"
        "DIRECTORY = get_model_dir()\ndef late():\n    import importlib\n"
        "    return importlib.import_module('utils').__name__\n" + EMPTY,
        utils="",
        queue="raise ValueError",
        beside="",
    )
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "modserve_worker").symlink_to(WORKER)
    command = [sys.executable, "-c", ALONE, path, str(tmp_path / "lib")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("good\n", "")


def test_a_load_while_another_thread_looks_for_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's cache of directories gains an entry in the middle of the look at it, as by another thread's import."""
    path = write(tmp_path / "m", model=EMPTY)
    numbers = itertools.count()

    class Growing(dict[str, Any]):
        def items(self) -> Any:
            for item in super().items():
                self[str(tmp_path / f"new {next(numbers)}")] = None
                yield item

    monkeypatch.setattr(sys, "path_importer_cache", Growing(sys.path_importer_cache))
    assert load(path).TritonPythonModel


def test_two_loads_that_both_forget_a_directory_that_was_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "m", model=EMPTY)
    late = str(tmp_path / "late")
    first = str(tmp_path / "first")
    cache: dict[str, Any] = {}

    class Other:
        def invalidate_caches(self) -> None:
            cache.pop(late, None)

    cache = {first: Other(), late: None}
    monkeypatch.setattr(sys, "path_importer_cache", cache)
    assert load(path).TritonPythonModel
    assert late not in cache


def test_a_directory_that_comes_late_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = tmp_path / "late"
    monkeypatch.syspath_prepend(str(late))
    assert importlib.util.find_spec("comes_late") is None
    late.mkdir()
    (late / "comes_late.py").write_text("", encoding="utf-8")
    assert load(write(tmp_path / "m", model="import comes_late\n" + EMPTY)).comes_late


def test_a_model_is_closed_while_another_thread_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = model.load(write(tmp_path / "m", model=EMPTY), "m", None, isolated=True)
    name = loaded.module.__name__

    class Name(str):
        """A name that is looked at while somebody else's import ends."""

        def startswith(self, *arguments: Any) -> bool:
            sys.modules.setdefault("imported_meanwhile", ModuleType("imported_meanwhile"))
            return False

        __hash__ = str.__hash__

    monkeypatch.delitem(sys.modules, "imported_meanwhile", raising=False)
    monkeypatch.setitem(sys.modules, Name("looked_at"), ModuleType("looked_at"))
    loaded.finalize()
    assert name not in sys.modules
    del sys.modules["imported_meanwhile"]
