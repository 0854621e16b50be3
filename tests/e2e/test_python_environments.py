"""Environments of Python models, with real interpreters: virtual environments, packed ones, installed requirements.

Nothing is downloaded: packages are the numpy that is here, and a wheel that the test writes.
"""

import io
import json
import logging
import os
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from modserve.backends.api import ModelSource
from modserve.backends.python import environment_cache
from modserve.backends.python.environment import prepare
from modserve.backends.python.interpreter import Interpreter
from modserve.backends.python.options import BackendOptions, ModelOptions
from modserve.core.configuration.model_config import ModelConfig
from modserve.core.errors import Code, ModserveError

NUMPY = Path(np.__file__).parent
PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"
SITE_PACKAGES = Path("lib", PYTHON, "site-packages")
OTHER_NUMPY = "1.99.0"
PLAIN = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """As if this process had ended, with which its locks go."""
    yield
    for lock in environment_cache._in_use.values():
        os.close(lock)
    environment_cache._in_use.clear()


@pytest.fixture
def source(tmp_path: Path) -> ModelSource:
    directory = tmp_path / "models" / "m"
    (directory / "1").mkdir(parents=True)
    return ModelSource(ModelConfig(name="m", backend="python"), 1, directory / "1" / "model.py", directory)


@pytest.fixture
def backend(tmp_path: Path) -> BackendOptions:
    return BackendOptions(install_requirements=True, environment_directory=str(tmp_path / "cache"))


def make_venv(directory: Path, *, numpy: bool = True) -> Path:
    """A virtual environment, whose numpy is the one here under another version's number."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    if numpy:
        package = directory / SITE_PACKAGES / "numpy"
        package.mkdir()
        content = f"__version__ = '{OTHER_NUMPY}'\n__path__.append({str(NUMPY)!r})\n"
        (package / "__init__.py").write_text(content)
    return directory


def make_archive(path: Path, files: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.mode, info.size = 0o755, len(content.encode())
            tar.addfile(info, io.BytesIO(content.encode()))
    return path


PACKED = {
    # The interpreter of a packed environment is a program of its own; this one is the one here under another name.
    "bin/python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
    "bin/conda-unpack": "import os, sys\n"
    "prefix = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))\n"
    "open(os.path.join(prefix, 'fixed'), 'w').write(prefix)\n"
    "open(os.path.join(prefix, 'count'), 'a').write('x')\n",
    "lib/libempty.txt": "",
    "conda-meta/history": "",
}
LOAD = """
import sys; from pathlib import Path; from modserve.backends.python import environment
print(environment._find_unpacked(Path(sys.argv[1]), "x", "m", Path(sys.argv[2])))
"""


def ready_for(source: ModelSource, path: Path | str, backend: BackendOptions) -> Interpreter:
    return prepare(source, ModelOptions(environment_path=str(path)), backend, PLAIN)


def refusal(source: ModelSource, path: Path | str, backend: BackendOptions) -> ModserveError:
    with pytest.raises(ModserveError) as caught:
        ready_for(source, path, backend)
    return caught.value


def directory_of(ready: Interpreter) -> Path:
    return Path(ready.variables["VIRTUAL_ENV"])


def numpy_of(ready: Interpreter) -> str:
    return run(ready, "import numpy; print(numpy.__version__)")


def run(ready: Interpreter, text: str) -> str:
    command = [ready.python, "-c", text]
    return subprocess.run(command, env=dict(ready.variables), check=True, capture_output=True, text=True).stdout.strip()


def test_a_virtual_environment(source: ModelSource, backend: BackendOptions, tmp_path: Path) -> None:
    directory = make_venv(tmp_path / "venv")
    ready = ready_for(source, directory, backend)
    assert (directory_of(ready), numpy_of(ready)) == (directory, OTHER_NUMPY)
    assert run(ready, "import sys; print(sys.prefix)") == str(directory)
    assert run(ready, "import importlib.util as u; print(u.find_spec('onnxruntime'))") == "None"


def test_one_without_numpy(source: ModelSource, backend: BackendOptions, tmp_path: Path) -> None:
    directory = make_venv(tmp_path / "venv", numpy=False)
    error = refusal(source, directory, backend)
    python = directory / "bin" / "python"
    assert error.code is Code.INVALID_ARG
    assert error.message == (
        f"the environment '{directory}' of model 'm' (CPython {sys.version.split()[0]}) has no numpy; a worker needs "
        f"it: '{python} -m pip install numpy'"
    )
    # It is looked at anew, once it is repaired.
    package = directory / SITE_PACKAGES / "numpy"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('half of it is missing')")
    assert "has a numpy that cannot be imported: RuntimeError('half of it is missing')" in str(
        refusal(source, directory, backend)
    )
    (package / "__init__.py").write_text("__version__ = '1.2.3'")
    assert numpy_of(ready_for(source, directory, backend)) == "1.2.3"


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("#!/bin/sh\necho it is broken >&2\nexit 3\n", "ended with status 3:\n  it is broken"),
        ("#!/bin/sh\nkill -9 $$\n", "ended with signal 9"),
        ("no program", "cannot be run: Exec format error"),
        (
            "#!/bin/sh\necho; echo 'modserve-interpreter:{\"version\": [3, 6, 15]}'\n",
            "has Python 3.6.15; a worker needs Python 3.8 or later",
        ),
    ],
)
def test_interpreters_that_are_no_good(
    source: ModelSource, backend: BackendOptions, tmp_path: Path, program: str, text: str
) -> None:
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(program)
    python.chmod(0o755)
    assert refusal(source, tmp_path / "env", backend).message.endswith(text)


def test_a_packed_environment(source: ModelSource, backend: BackendOptions, tmp_path: Path) -> None:
    make_archive(source.model_directory / "env.tar.gz", PACKED)
    ready = ready_for(source, "$$TRITON_MODEL_DIRECTORY/env.tar.gz", backend)
    place = directory_of(ready)
    assert place.is_relative_to(tmp_path / "cache")
    assert (place / "fixed").read_text() == str(place)
    assert ready.python == str(place / "bin" / "python")
    assert run(ready, "import os; print(os.environ['LD_LIBRARY_PATH'])") == str(place / "lib")
    assert ready.variables["CONDA_PREFIX"] == str(place)
    # Another process would find it there.
    assert ready_for(source, "$$TRITON_MODEL_DIRECTORY/env.tar.gz", backend) == ready
    assert (place / "count").read_text() == "x"


def test_several_loads_of_one_archive(source: ModelSource, backend: BackendOptions, tmp_path: Path) -> None:
    path, places = make_archive(tmp_path / "env.tar.gz", PACKED), []
    (tmp_path / "cache").mkdir()
    command = [sys.executable, "-c", LOAD, str(path), str(tmp_path / "cache")]
    others = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]

    def load_here() -> None:
        places.append(str(directory_of(ready_for(source, path, backend))))

    threads = [threading.Thread(target=load_here) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    places += [process.communicate()[0].strip() for process in others]
    assert len(set(places)) == 1
    assert len(places) == 4
    assert Path(places[0], "count").read_text() == "x"


def test_a_server_that_is_killed_while_it_unpacks(
    source: ModelSource, backend: BackendOptions, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What it started goes on without it; nobody else touches the directory before that has ended."""
    began, end, once = (tmp_path / name for name in ("began", "end", "once"))
    for pipe in (began, end):
        os.mkfifo(pipe)
    slow = (
        f"import os, pathlib\n"
        f"if not os.path.exists({str(once)!r}):\n"
        f"    pathlib.Path({str(once)!r}).touch()\n"
        f"    pathlib.Path({str(began)!r}).write_text('x')\n"
        f"    pathlib.Path({str(end)!r}).read_text()\n"
        f"    (pathlib.Path(__file__).parent / 'late').touch()\n"
    )
    path = make_archive(tmp_path / "env.tar.gz", PACKED | {"bin/conda-unpack": slow})
    (tmp_path / "cache").mkdir()
    server = subprocess.Popen([sys.executable, "-c", LOAD, path, tmp_path / "cache"])
    assert began.read_text() == "x"
    server.kill()
    server.wait()

    def let_it_end(record: logging.LogRecord) -> bool:
        if record.getMessage().startswith("model 'm': waiting for another load"):
            end.write_text("x")
        return True

    log = logging.getLogger("modserve.backends.python.environment_cache")
    log.addFilter(let_it_end)
    try:
        with caplog.at_level("INFO"):
            ready = ready_for(source, path, backend)
    finally:
        log.removeFilter(let_it_end)
    assert "waiting for another load" in caplog.text
    assert not (directory_of(ready) / "bin" / "late").exists()


def test_activation_scripts_of_conda(source: ModelSource, backend: BackendOptions, tmp_path: Path) -> None:
    script = 'export GDAL_DATA="$CONDA_PREFIX/share/gdal"\nexport ODD="two\nlines"\necho chatter\n'
    script += 'export LIBRARIES_OF_SHELL="$LD_LIBRARY_PATH"\nexport LD_LIBRARY_PATH=/opt/lib\n'
    files = PACKED | {"etc/conda/activate.d/gdal.sh": script}
    ready = ready_for(source, make_archive(tmp_path / "env.tar.gz", files), backend)
    assert ready.variables["GDAL_DATA"] == f"{directory_of(ready)}/share/gdal"
    assert ready.variables["LIBRARIES_OF_SHELL"] == ""
    assert ready.variables["LD_LIBRARY_PATH"] == f"{directory_of(ready)}/lib:/opt/lib"
    assert ready.variables["ODD"] == "two\nlines"
    assert not {"_", "SHLVL", "PWD", "OLDPWD"} & ready.variables.keys()


def test_a_pipe_is_no_archive(source: ModelSource, backend: BackendOptions, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "env.tar.gz")
    error = refusal(source, tmp_path / "env.tar.gz", backend)
    assert error.code is Code.INVALID_ARG
    assert "which cannot be unpacked: it is a pipe, expected a regular file" in error.message


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"../out": ""}, "which cannot be unpacked: '../out' would be written outside the environment"),
        (PACKED | {"bin/conda-unpack": "import sys; sys.exit('no prefix')"}, "ended with status 1:\n  no prefix"),
        ({"readme": ""}, "has no interpreter: expected '"),
    ],
)
def test_archives_that_are_no_good(
    source: ModelSource, backend: BackendOptions, tmp_path: Path, files: dict[str, str], text: str
) -> None:
    error = refusal(source, make_archive(tmp_path / "env.tar.gz", files), backend)
    assert error.code is Code.INVALID_ARG
    assert text in error.message
    left = [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    assert len(left) == ("readme" in files)


def test_a_full_disk(source: ModelSource, tmp_path: Path) -> None:
    """The limit on the size of files stands for it: both come as an error of a write."""
    path = make_archive(tmp_path / "env.tar.gz", {"large": "x" * 300_000})
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "from pathlib import Path; from modserve.backends.python import environment\n"
        "try: environment._find_unpacked(Path(sys.argv[1]), 'x', 'm', Path(sys.argv[2]))\n"
        "except Exception as error: print(repr(error))\n"
    )
    (tmp_path / "cache").mkdir()
    ended = subprocess.run(
        [sys.executable, "-c", code, path, tmp_path / "cache"], capture_output=True, text=True, check=True
    )
    assert ended.stdout.startswith("ModserveError(UNAVAILABLE, \"an environment cannot be made in '")
    assert f"unpacking '{path}': File too large; " in ended.stdout
    assert "MiB are free there; --backend-config=python,environment-directory=…" in ended.stdout
    assert not [each for each in (tmp_path / "cache").iterdir() if each.is_dir()]


def make_wheel(directory: Path, name: str, version: str, files: dict[str, str]) -> None:
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = files | {f"{info}/METADATA": metadata, f"{info}/WHEEL": wheel}
    record = "".join(f"{each},,\n" for each in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(directory / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, content in (files | {f"{info}/RECORD": record}).items():
            archive.writestr(path, content)


def test_requirements(
    source: ModelSource, backend: BackendOptions, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wheels = source.model_directory / "wheels"
    wheels.mkdir()
    make_wheel(wheels, "useful", "1.0", {"useful.py": "VALUE = 42"})
    make_wheel(wheels, "numpy", OTHER_NUMPY, {"numpy/__init__.py": f"__version__ = '{OTHER_NUMPY}'"})
    file = source.model_directory / "requirements.txt"
    file.write_text("useful==1.0\n")
    # What the user configures for pip counts, and numpy is added though the file does not name it.
    inherited = PLAIN | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_USER": "1", "PYTHONPATH": "/nowhere"}
    with caplog.at_level("INFO"):
        ready = prepare(source, ModelOptions(), backend, inherited)
    assert numpy_of(ready) == OTHER_NUMPY
    assert run(ready, "import useful; print(useful.VALUE)") == "42"
    assert run(ready, "import importlib.util as u; print(u.find_spec('onnxruntime'))") == "None"
    making, made = (record.getMessage() for record in caplog.records)
    entry = directory_of(ready).parent
    assert making == f"model 'm': making '{entry}' from '{file}', which may take minutes"
    assert made.startswith(f"model 'm': made '{entry}' in ")
    caplog.clear()
    with caplog.at_level("INFO"):
        assert prepare(source, ModelOptions(), backend, inherited) == ready
    assert not caplog.records
    assert json.loads((directory_of(ready).parent / "complete.json").read_text()) == {"source": str(file)}


def test_requirements_that_cannot_be_installed(source: ModelSource, backend: BackendOptions, tmp_path: Path) -> None:
    file = source.model_directory / "1" / "requirements.txt"
    file.write_text("not-there-at-all==1.0\n")
    with pytest.raises(ModserveError) as caught:
        prepare(source, ModelOptions(), backend, PLAIN | {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull})
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message.startswith(f"model 'm': cannot install '{file}': '{tmp_path}/cache/requirements-")
    assert "install -r requirements.txt' ended with status 1:\n" in caught.value.message
    assert "No matching distribution found for not-there-at-all==1.0" in caught.value.message
    assert not [each for each in (tmp_path / "cache").iterdir() if each.is_dir()]


def test_threads_of_numpy() -> None:
    """OpenBLAS, which numpy's wheels have, goes by the variable that a worker gets."""
    count = (
        "import numpy as np, os; a = np.ones((600, 600)); a @ a; print(len(os.listdir('/proc/self/task')))"
        if sys.platform == "linux"
        else "print(1)"
    )
    variables = os.environ | {"OMP_NUM_THREADS": "1"}
    for name in ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS"):
        variables.pop(name, None)
    ended = subprocess.run([sys.executable, "-c", count], env=variables, check=True, capture_output=True, text=True)
    assert ended.stdout.strip() == "1"
