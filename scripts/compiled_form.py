"""The compiled form of modserve: the modules that `pyproject.toml` lists, made into extension modules by mypyc.

    python scripts/compiled_form.py            # or scripts/compile: makes it in build/compiled
    python scripts/compiled_form.py --one-job  # the same on one core
    python scripts/compiled_form.py --kept     # prints the folder with the form of this very source, if it was made
    python scripts/compiled_form.py --compiler # prints the C compiler's program, if there is one
    python scripts/compiled_form.py --later    # makes it in a process that outlives this one; prints what comes of it

`build/compiled` is a copy of the source with the extension modules beside it, and what the next build can use again.
What servers run is a copy of that in `build/forms`, in a folder named by the source's digest. It never changes, so that
a running server keeps its modules, and the form of another commit is never taken for this one's. `hatch_build.py` makes
wheels. Compiling needs a C compiler, ``mypy[mypyc]`` and setuptools; the other calls need nothing but Python.
"""

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
import zlib
from collections.abc import Callable, Iterator, Sequence
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
FORMS = ROOT / "build" / "forms"
"""A folder for each source whose form was made here, the last few."""
RECORD = "modserve/compiled.json"
"""Of what each extension module was made: `modserve.form` compares it with the source beside it."""
LOG = "build/compile.log"
"""What a build in the background says."""
_STAMP = "stamp.json"
_KEPT_FORMS = 3
_DIGITS = 16
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


def make(
    root: Path = ROOT, target: Path = TARGET, without: Sequence[str] = (), forms: Path | None = None, cores: int = 0
) -> Path:
    """Bring `target` up to date, and return the folder with the form. Prints what it does, and how long it took.

    That folder is `target`, which another build may change; with `forms`, it is a folder in there that never changes,
    and of which the last few are kept. Nothing is compiled if the listed modules, and all they could take types from,
    are as they were at the last time. The listed modules in the packages of `without` are left to the interpreter too.
    `cores` are those that compile; 0: all.
    """
    listed = [name for name in modules(root).compiled if not within(name, without)]
    with _locked(target):
        # What is compiled, and named, is the copy: the source may be edited while the compiler runs.
        _copy_source(root / "src" / "modserve", target / "modserve")
        key = _key(target, listed)
        made = _made(target, key)
        if made is None:
            began = time.perf_counter()
            made = _compiled(target, listed, cores or _usable_cores())
            seconds = time.perf_counter() - began
            (target / _STAMP).write_text(json.dumps({"key": key, "files": made, "seconds": seconds}))
            print(f"compiled in {seconds:.0f} s: {size(target) / 1e6:.1f} MB", file=sys.stderr)
        else:
            print("the compiled form is up to date", file=sys.stderr)
        _write_record(target, listed)
        return target if forms is None else _keep(target, forms, _key(target, listed, tools=())[:_DIGITS])


def files(form: Path) -> list[Path]:
    """What a form has beside the source: its extension modules, and the record."""
    return [*_extension_modules(form), form / RECORD]


def digest(root: Path = ROOT) -> str:
    """Of all that the compiled form of a checkout depends on, the tools that make it apart."""
    return _key(root / "src", modules(root).compiled, tools=())[:_DIGITS]


def kept(root: Path = ROOT, forms: Path = FORMS) -> Path | None:
    """The folder to be put on PYTHONPATH, if the form of this source was made."""
    folder = forms / digest(root)
    return folder if folder.is_dir() else None


def _keep(target: Path, forms: Path, name: str) -> Path:
    """Copy what is in `target` to a folder that stays as it is; of those before, the last few are kept."""
    folder = forms / name
    if not folder.is_dir():
        forms.mkdir(parents=True, exist_ok=True)
        new = forms / f".{name}-{os.getpid()}"
        new.mkdir()
        shutil.copytree(target / "modserve", new / "modserve", ignore=shutil.ignore_patterns("__pycache__"))
        for path in _extension_modules(target):
            if path.parent == target:
                shutil.copy2(path, new)
        with contextlib.suppress(OSError):  # another process was first
            new.rename(folder)
        shutil.rmtree(new, ignore_errors=True)
    folder.touch()
    for old in sorted(forms.iterdir(), key=lambda path: path.stat().st_mtime)[:-_KEPT_FORMS]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


def compiler() -> str:
    """The C compiler's program; empty if there is none."""
    words = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    return (shutil.which(words[0]) or "") if words else ""


def later(root: Path = ROOT) -> str:
    """Run `scripts/compile` in a process of its own, and say what comes of it.

    Its output goes to build/compile.log, which is locked as long as that process, or one of its own, has it open: of
    several starts at once, one compiles.
    """
    import fcntl

    try:
        (root / "build").mkdir(exist_ok=True)
        with open(root / LOG, "ab") as log, contextlib.suppress(BlockingIOError):
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            log.truncate(0)
            command = ["nice", "-n", "19", str(root / "scripts" / "compile"), "--one-job"]
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    except OSError as error:
        return f"the compiled one cannot be made: {error}"
    return (
        f"one core now makes the compiled one, for about 4 minutes at the lowest priority ({LOG}): a later start "
        "serves it. MODSERVE_COMPILED=0 does without"
    )


@contextlib.contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Builds in one folder take turns."""
    target.mkdir(parents=True, exist_ok=True)
    with open(target / ".lock", "wb") as file:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write_record(target: Path, listed: Sequence[str]) -> None:
    files = {file: zlib.crc32((target / file).read_bytes()) for file in source_files(listed)}
    text = json.dumps(files, indent=0)
    record = target / RECORD
    if not record.exists() or record.read_text() != text:
        record.write_text(text)


def size(target: Path = TARGET) -> int:
    """Bytes of the extension modules."""
    return sum(path.stat().st_size for path in _extension_modules(target))


def seconds(target: Path = TARGET) -> float:
    """What the compiling took when it was last done."""
    return float(json.loads((target / _STAMP).read_text())["seconds"])


def _key(source: Path, listed: Sequence[str], tools: Sequence[str] = ("mypy", "setuptools")) -> str:
    hashed = hashlib.sha256()
    for path in sorted((source / "modserve").rglob("*.py*")):
        if path.suffix in (".py", ".pyi"):
            hashed.update(f"{path.relative_to(source)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    versions = [f"{name} {version(name)}" for name in tools]
    for part in (*listed, *versions, sys.version, sysconfig.get_config_var("SOABI"), Path(__file__).read_text()):
        hashed.update(f"{part}\n".encode())
    return hashed.hexdigest()


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
        made_here = name.name.endswith((*EXTENSION_SUFFIXES, Path(RECORD).name))
        kept = name in there or "__pycache__" in name.parts or made_here
        if not kept and path.is_file():
            path.unlink()
    for name in sorted(there):
        new, old = source / name, target / name
        if new.is_dir():
            old.mkdir(parents=True, exist_ok=True)
        elif not old.exists() or old.read_bytes() != new.read_bytes():
            shutil.copyfile(new, old)


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _compiled(target: Path, listed: Sequence[str], cores: int) -> list[str]:
    for path in _extension_modules(target):
        path.unlink()
    print(f"compiling {len(listed)} modules of modserve on {cores} core{'s' * (cores != 1)}", file=sys.stderr)
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
    from setuptools import Extension

    with tempfile.TemporaryDirectory() as folder:  # what fails now would fail after mypyc's half minute
        (source := Path(folder) / "modserve_tried.c").write_text(_TRIED)
        _compile([Extension("modserve_tried", [str(source)])], 1, Path(folder), inplace=False)
    began = time.perf_counter()
    extensions = mypycify(
        [*_MYPY, *files],
        opt_level=_OPTIMISATION,
        debug_level="0",
        multi_file=True,
        target_dir="c",
        group_name=LIBRARY,
    )
    divide_literals(Path("c"))
    print(f"  mypyc took {time.perf_counter() - began:.0f} s; now the C compiler", file=sys.stderr)
    for extension in extensions:
        extension.extra_compile_args = [*(extension.extra_compile_args or ()), "-w", *_HIDDEN]
        extension.extra_link_args = [*(extension.extra_link_args or ()), *LINK_OPTIONS]
    _compile(extensions, cores, Path("objects"), inplace=True)


_LITERAL = re.compile(r"\bCPyStatics\[(\d+)\]")
_FILLED = "    is_initialized = 1;\n"
_DECLARATION = re.compile(r"^typedef struct[^;{]*\{.*?^\} (\w+);$|^\w[^\n]*?(\w+)(?:\(|\[\w*\]|;)[^\n]*$", re.M | re.S)
_GUARD = re.compile(r"^#(ifndef|define) MYPYC_DECLARED_.*\n|^#endif\n", re.M)


def divide_literals(folder: Path) -> None:
    """Give each C file an array of its own literals, where mypyc has one array for those of all modules.

    A new literal moves others in that array, and all files would be compiled again. Now one file alone has the places:
    that with the function that fills the array, which then copies to those of the others.
    """
    main, header = folder / f"__native_{LIBRARY}.c", folder / f"__native_internal_{LIBRARY}.h"
    before, begins, after = main.read_text().partition("int CPyGlobalsInit(void)\n")
    if after.count(_FILLED) != 1:
        return  # another version of mypyc
    declared, copied = [], []
    for path in sorted(set(folder.glob("__native_*.c")) - {main}):
        text, name = path.read_text(), f"{path.stem}_literals"
        places = {place: n for n, place in enumerate(dict.fromkeys(_LITERAL.findall(text)))}
        if places:
            own, include = f"PyObject *{name}[{len(places)}];\n", f'#include "{header.name}"\n'
            parts = enumerate(_LITERAL.split(text))  # every second one is a place
            text = "".join(f"{name}[{places[part]}]" if n % 2 else part for n, part in parts)
            path.write_text(text.replace(include, include + own, 1))
            declared.append(f"extern {own}static const int {name}_places[] = {{{','.join(places)}}};\n")
            copied.append(f"    for (int n = 0; n < {len(places)}; n++) {name}[n] = CPyStatics[{name}_places[n]];\n")
    main.write_text(f"{before}{''.join(declared)}{begins}{after.replace(_FILLED, ''.join(copied) + _FILLED)}")
    header.write_text(_LITERAL.sub("CPyStatics[]", header.read_text()))


def declarations_used(headers: str) -> Callable[[str], list[str]]:
    """Tells what a C file uses of these headers: declarations, what those use, and all that is no declaration."""
    declarations: dict[str, str] = {}
    for match in _DECLARATION.finditer(headers):
        name = match[1] or match[2]
        declarations[name] = declarations.get(name, "") + match[0]
    words = {name: set(re.findall(r"\w+", text)) for name, text in declarations.items()}
    rest = _GUARD.sub("", _DECLARATION.sub("", headers)).split()

    def used(source: str) -> list[str]:
        seen: set[str] = set()
        more = set(re.findall(r"\w+", source)) & declarations.keys()
        while more:
            seen |= more
            more = set().union(*(words[name] for name in more)) & declarations.keys() - seen
        return [*rest, *(declarations[name] for name in sorted(seen))]

    return used


_TRIED = "#include <Python.h>\nPyMODINIT_FUNC PyInit_modserve_tried(void) { return NULL; }\n"


def _compile(extensions: Sequence[Any], cores: int, objects: Path, inplace: bool) -> None:
    """The C compiler and the linker. Raises SystemExit where they fail."""
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext
    from setuptools.errors import CompileError, LinkError

    class Parallel(build_ext):  # type: ignore[misc]
        """Files and extension modules side by side, and only those that have changed."""

        def build_extensions(self) -> None:
            compiler: Any = self.compiler
            compile_some = compiler.compile
            used = declarations_used("".join(path.read_text() for path in sorted(Path().glob("c/**/*.h"))))

            def compile_one(source: str, options: dict[str, Any]) -> list[str]:
                """Nothing is done for a file that says what it said when it was last compiled, as do its headers.

                The versions stand for the headers of Python and of mypyc, whose place is another in each environment.
                """
                made: list[str] = compiler.object_filenames([source], output_dir=options["output_dir"])
                flags = [options["macros"], options["extra_postargs"]]
                text = Path(source).read_text()
                parts = (text, used(text), flags, version("mypy"), sys.version)
                key = hashlib.sha256(repr(parts).encode()).hexdigest()
                mark = Path(f"{made[0]}.key")
                if not (mark.exists() and mark.read_text() == key and Path(made[0]).exists()):
                    mark.unlink(missing_ok=True)
                    compile_some([source], **options)
                    mark.write_text(key)
                return made

            def compile_all(sources: Sequence[str], **options: Any) -> list[str]:
                with ThreadPoolExecutor(cores) as pool:  # the longest first, so that no core is left with it alone
                    longest = sorted(sources, key=lambda source: -Path(source).stat().st_size)
                    each = {source: pool.submit(compile_one, source, options) for source in longest}
                    return [file for source in sources for file in each[source].result()]

            compiler.compile = compile_all
            super().build_extensions()

    command = Parallel(Distribution({"name": "modserve", "ext_modules": extensions, "packages": []}))
    command.inplace, command.parallel = inplace, cores
    command.build_lib = command.build_temp = str(objects)
    command.verbose = False
    command.ensure_finalized()
    try:
        command.run()
    except (CompileError, LinkError) as error:
        raise SystemExit(f"the C compiler failed; it said why above: {error}") from None


_HIDDEN = () if sys.platform == "win32" else ("-fvisibility=hidden",)
"""What the modules have for each other is not for other libraries: calls go straight there, or are inlined."""
LINK_OPTIONS: tuple[str, ...] = ("-Wl,-s",) if sys.platform == "linux" else ()


def main() -> None:
    words = sys.argv[1:]
    if words == ["--kept"]:
        print(kept() or "")
    elif words == ["--compiler"]:
        print(compiler())
    elif words == ["--later"]:
        print(later())
    elif words in ([], ["--one-job"]):
        make(forms=FORMS, cores=len(words))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
