"""Import of a model.py and the modules next to it.

A model sees the modules and packages of its version's directory, of its own directory, and of more that it names.

In a worker process there is one model, and these directories are on `sys.path`: after the standard library, so that a
file `queue.py` breaks nothing, and before installed packages. The model's module is called ``1.model`` for version 1,
as in Triton, so relative imports work.

In the server there are several models, and their `utils.py` must not be the same. So each has a private package,
``modserve_models.<n>``, with these directories as its path, and an `__import__` of its own: `import utils` means the
private package's `utils` if there is such a file. The function travels with the code, as the `__builtins__` of each
module's globals, so it counts for later imports, in other threads too. `importlib.import_module` knows nothing of it.
"""

import builtins
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import os
import sys
import threading
from types import CodeType, FrameType, ModuleType
from typing import Any, Dict, Optional, Sequence

from . import host

DIRECTORY_IN_GLOBALS = "__modserve_model_dir__"
_PRIVATE = "modserve_models"
_API = ("triton_python_backend_utils", "c_python_backend_utils")

_numbers = itertools.count(1)
_scopes: "Dict[str, Scope]" = {}
_lock = threading.Lock()
_directory_of_process: Optional[str] = None


class Scope:
    """Importable modules of a model. `close` forgets its private modules."""

    def __init__(self, path: str, of_host: Optional[host.Host], isolated: bool, search_paths: Sequence[str]) -> None:
        self.isolated = isolated
        named = os.path.dirname(os.path.abspath(path))
        self.directory = os.path.realpath(named) if os.path.islink(named) else named  # tracebacks name the user's files
        self.path = os.path.join(self.directory, os.path.basename(path))
        self.directories = [self.directory, os.path.dirname(named), *search_paths]
        self.globals: Dict[str, Any] = {host.NAME_IN_GLOBALS: of_host, DIRECTORY_IN_GLOBALS: self.directory}
        self._private: Dict[str, bool] = {}
        self.package = f"{_PRIVATE}.{next(_numbers)}" if isolated else os.path.basename(named)
        if isolated:
            self.globals["__builtins__"] = {**vars(builtins), "__import__": self._import}

    def run(self) -> ModuleType:
        """Import model.py; raises any exception of its code."""
        offer_api()
        forget_listings()
        if self.isolated:
            self._make_private_package()
        else:
            self._share_process()
        name = f"{self.package}.{os.path.splitext(os.path.basename(self.path))[0]}"
        spec = importlib.util.spec_from_file_location(name, self.path, loader=_Loader(name, self.path, self.globals))
        if spec is None or spec.loader is None:
            raise ImportError(f"{self.path} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            self.close()
            sys.modules.pop(name, None)
            raise
        return module

    def _share_process(self) -> None:
        global _directory_of_process
        _directory_of_process = self.directory
        at = _end_of_standard_library()
        sys.path[at:at] = [directory for directory in self.directories if directory not in sys.path]
        if self.package not in sys.modules:
            package = ModuleType(self.package)
            package.__path__ = [self.directory]
            sys.modules[self.package] = package

    def _make_private_package(self) -> None:
        with _lock:
            if _PRIVATE not in sys.modules:
                root = ModuleType(_PRIVATE)
                root.__path__ = []
                sys.modules[_PRIVATE] = root
            if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
                sys.meta_path.insert(0, _Finder())
            package = ModuleType(self.package)
            package.__path__ = list(self.directories)
            sys.modules[self.package] = package
            _scopes[self.package] = self

    def close(self) -> None:
        if not self.isolated:
            return
        with _lock:
            _scopes.pop(self.package, None)
        for name in list(sys.modules):  # in one step: other threads import meanwhile
            if name == self.package or name.startswith(self.package + "."):
                sys.modules.pop(name, None)

    def _import(
        self,
        name: str,
        globals: Any = None,
        locals: Any = None,
        fromlist: Optional[Sequence[str]] = (),
        level: int = 0,
    ) -> Any:
        top = name.partition(".")[0]
        if level != 0 or not self._is_private(top):
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        private = f"{self.package}.{name}"
        if fromlist:
            return builtins.__import__(private, globals, locals, fromlist, 0)
        importlib.import_module(private)
        return sys.modules[f"{self.package}.{top}"]

    def _is_private(self, top: str) -> bool:
        known = self._private.get(top)
        if known is None:
            known = self._private[top] = self._is_beside(top)
        return known

    def _is_beside(self, top: str) -> bool:
        if top in _API or top in sys.builtin_module_names or top in getattr(sys, "stdlib_module_names", ()):
            return False
        spec = importlib.machinery.PathFinder.find_spec(top, self.directories)
        if spec is None:
            return False
        # A directory without __init__.py may hold anything: an installed package of the same name is meant.
        return spec.loader is not None or importlib.util.find_spec(top) is None


class _Loader(importlib.machinery.SourceFileLoader):
    """Loader of a module with a few globals of its own."""

    def __init__(self, name: str, path: str, of_model: Dict[str, Any]) -> None:
        super().__init__(name, path)
        self._of_model = of_model

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(self._of_model)
        super().exec_module(module)

    def get_code(self, fullname: str) -> CodeType:
        """Always compile the source: cached bytecode matches its source to the second, and a reload may be sooner."""
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


class _Finder(importlib.abc.MetaPathFinder):
    """Finder of models' private modules."""

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        if not fullname.startswith(_PRIVATE + "."):
            return None
        scope = _scopes.get(".".join(fullname.split(".", 2)[:2]))
        if scope is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is importlib.machinery.SourceFileLoader:
            spec.loader = _Loader(fullname, spec.loader.path, scope.globals)
        return spec


def forget_listings() -> None:
    """Let the next import see files and directories that are new, as `importlib.invalidate_caches` does.

    That one goes through a dictionary to which every import of another thread may add, and removes entries that another
    call may have removed.
    """
    with _lock:
        for place, finder in sys.path_importer_cache.copy().items():
            if finder is None:  # there was no such directory
                sys.path_importer_cache.pop(place, None)
            elif hasattr(finder, "invalidate_caches"):
                finder.invalidate_caches()


def offer_api() -> None:
    """Make the module that models import importable, by its names in Triton."""
    api = importlib.import_module(".triton_python_backend_utils", __package__)
    for name in _API:
        sys.modules[name] = api


def model_directory() -> str:
    """Return the directory of the calling model.py. Raises RuntimeError where no model runs."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        directory = frame.f_globals.get(DIRECTORY_IN_GLOBALS)
        if directory is not None:
            return str(directory)
        frame = frame.f_back
    if _directory_of_process is not None:
        return _directory_of_process
    raise RuntimeError("this works only in a model that a server runs")


def _end_of_standard_library() -> int:
    """Return the index of the first entry of `sys.path` after the standard library."""
    standard = os.path.dirname(os.__file__)
    for index in range(len(sys.path), 0, -1):
        if sys.path[index - 1] in (standard, os.path.join(standard, "lib-dynload")):
            return index
    return len(sys.path)
