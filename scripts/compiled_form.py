"""The compiled form of modserve: the modules that `pyproject.toml` lists, made into extension modules by mypyc.

`python scripts/compiled_form.py` (or `scripts/compile`) leaves it in `build/compiled`: a copy of the source, with the
extension modules beside it. `hatch_build.py` makes wheels of it. Needs a C compiler, ``mypy[mypyc]`` and setuptools.
"""

import hashlib
import json
import os
import shutil
import sys
import sysconfig
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "build" / "compiled"
LIBRARY = "modserve_compiled"
"""The library with the code of all modules, which the extension modules load: it stands beside the package."""
_STAMP = "stamp.json"
_MYPY = ("--config-file=", "--ignore-missing-imports", "--follow-imports=silent")
_OPTIMISATION = "2"


@dataclass(frozen=True)
class Modules:
    """What `pyproject.toml` says: names without ``modserve.``, and why some are left to the interpreter."""

    compiled: tuple[str, ...]
    interpreted: dict[str, str]


def modules(root: Path = ROOT) -> Modules:
    """The table ``[tool.hatch.build.hooks.custom]``."""
    table = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    hook = table["tool"]["hatch"]["build"]["hooks"]["custom"]
    return Modules(tuple(hook["compiled"]), dict(hook["interpreted"]))


def source_files(listed: Sequence[str]) -> list[str]:
    """The modules' files, from the folder that holds the package on."""
    return [f"modserve/{name.replace('.', '/')}.py" for name in listed]


def within(name: str, packages: Sequence[str]) -> bool:
    """Whether a module is one of these packages or modules, or in one of them."""
    return any(name == each or name.startswith(f"{each}.") for each in packages)


def make(root: Path = ROOT, target: Path = TARGET, without: Sequence[str] = ()) -> list[Path]:
    """Bring `target` up to date; returns its extension modules. Prints what it does, and how long it took.

    Nothing is compiled if the listed modules, and all they could take types from, are as they were at the last time.
    The listed modules in the packages of `without` are left to the interpreter too.
    """
    listed = [name for name in modules(root).compiled if not within(name, without)]
    key = _key(root / "src", listed)
    made = _made(target, key)
    if made is None:
        began = time.perf_counter()
        made = _compiled(root, target, listed)
        seconds = time.perf_counter() - began
        (target / _STAMP).write_text(json.dumps({"key": key, "files": made, "seconds": seconds}))
        print(f"compiled in {seconds:.0f} s: {size(target) / 1e6:.1f} MB", file=sys.stderr)
    else:
        _copy_source(root / "src" / "modserve", target / "modserve")
        print("the compiled form is up to date", file=sys.stderr)
    return [target / path for path in made]


def size(target: Path = TARGET) -> int:
    """Bytes of the extension modules."""
    return sum(path.stat().st_size for path in _extension_modules(target))


def seconds(target: Path = TARGET) -> float:
    """What the compiling took when it was last done."""
    return float(json.loads((target / _STAMP).read_text())["seconds"])


def _key(source: Path, listed: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for path in sorted(source.rglob("*.py*")):
        if path.suffix in (".py", ".pyi"):
            digest.update(f"{path.relative_to(source)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    tools = [f"{name} {version(name)}" for name in ("mypy", "setuptools")]
    for part in (*listed, *tools, sys.version, sysconfig.get_config_var("SOABI"), Path(__file__).read_text()):
        digest.update(f"{part}\n".encode())
    return digest.hexdigest()


def _made(target: Path, key: str) -> list[str] | None:
    """The extension modules of the last time, if they are what would be made now."""
    try:
        stamp = json.loads((target / _STAMP).read_text())
    except (OSError, ValueError):
        return None
    files: list[str] = stamp["files"]
    return files if stamp["key"] == key and all((target / path).exists() for path in files) else None


def _copy_source(source: Path, target: Path) -> None:
    """Make `target` the same as `source`, extension modules and bytecode apart."""
    target.mkdir(parents=True, exist_ok=True)
    there = {path.relative_to(source) for path in source.rglob("*") if "__pycache__" not in path.parts}
    for path in sorted(target.rglob("*"), reverse=True):
        name = path.relative_to(target)
        kept = name in there or "__pycache__" in name.parts or name.name.endswith(tuple(EXTENSION_SUFFIXES))
        if not kept and path.is_file():
            path.unlink()
    for name in sorted(there):
        new, old = source / name, target / name
        if new.is_dir():
            old.mkdir(parents=True, exist_ok=True)
        elif not old.exists() or old.read_bytes() != new.read_bytes():
            shutil.copyfile(new, old)


def _compiled(root: Path, target: Path, listed: Sequence[str]) -> list[str]:
    for path in _extension_modules(target):
        path.unlink()
    _copy_source(root / "src" / "modserve", target / "modserve")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    print(f"compiling {len(listed)} modules of modserve on {cores} cores", file=sys.stderr)
    here = Path.cwd()
    os.chdir(target)  # mypyc goes by the working directory
    try:
        _build(source_files(listed), cores)
    finally:
        os.chdir(here)
    return [str(path.relative_to(target)) for path in _extension_modules(target)]


def _extension_modules(target: Path) -> Iterator[Path]:
    folders = [*target.glob("*"), *(target / "modserve").rglob("*")]
    return iter(sorted(path for path in folders if path.name.endswith(tuple(EXTENSION_SUFFIXES))))


def _build(files: Sequence[str], cores: int) -> None:
    """mypyc, the C compiler and the linker, in the working directory."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext
    from setuptools.errors import CompileError

    class Parallel(build_ext):  # type: ignore[misc]
        """Files of a library side by side, where setuptools goes one by one, and only those that have changed."""

        def build_extensions(self) -> None:
            compiler: Any = self.compiler
            compile_some = compiler.compile

            def compile_one(source: str, headers: str, options: dict[str, Any]) -> list[str]:
                """Nothing is done for a file that says what it said when it was last compiled, as do all headers."""
                objects: list[str] = compiler.object_filenames([source], output_dir=options["output_dir"])
                parts = (Path(source).read_bytes(), headers, sorted(options.items()), version("mypy"), sys.version)
                key = hashlib.sha256(repr(parts).encode()).hexdigest()
                mark = Path(f"{objects[0]}.key")
                if not (mark.exists() and mark.read_text() == key and Path(objects[0]).exists()):
                    mark.unlink(missing_ok=True)
                    compile_some([source], **options)
                    mark.write_text(key)
                return objects

            def compile_all(sources: Sequence[str], **options: Any) -> list[str]:
                headers = hashlib.sha256()
                for path in sorted(Path().glob("c/**/*.h")):
                    headers.update(f"{path} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
                with ThreadPoolExecutor(cores) as pool:
                    each = pool.map(lambda source: compile_one(source, headers.hexdigest(), options), sources)
                    return [file for files in each for file in files]

            compiler.compile = compile_all
            super().build_extensions()

    began = time.perf_counter()
    extensions = mypycify(
        [*_MYPY, *files],
        opt_level=_OPTIMISATION,
        debug_level="0",
        multi_file=True,
        target_dir="c",
        group_name=LIBRARY,
    )
    print(f"  mypyc took {time.perf_counter() - began:.0f} s; now the C compiler", file=sys.stderr)
    for extension in extensions:
        extension.extra_compile_args = [*(extension.extra_compile_args or ()), "-Wno-error", *_HIDDEN]
        extension.extra_link_args = [*(extension.extra_link_args or ()), *_STRIPPED]
        extension.depends.append(__file__)  # other options make other code of the same files
    command = Parallel(Distribution({"name": "modserve", "ext_modules": extensions, "packages": []}))
    command.inplace = True
    command.build_temp = "objects"
    command.verbose = False
    command.ensure_finalized()
    try:
        command.run()
    except CompileError as error:
        raise SystemExit(f"the C compiler failed; it said why above: {error}") from None


_HIDDEN = () if sys.platform == "win32" else ("-fvisibility=hidden",)
"""What the modules have for each other is not for other libraries: calls go straight there, or are inlined."""
_STRIPPED = ("-Wl,-s",) if sys.platform == "linux" else ()


if __name__ == "__main__":
    make()
