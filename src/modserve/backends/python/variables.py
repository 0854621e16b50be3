"""Environment variables of a worker process.

A worker has those of the server, so that the user's settings reach the model, and

- ``OMP_NUM_THREADS``, see `with_threads`;
- for an interpreter in an environment of its own, what activating it would set (`activate`).
"""

import os
import site
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from .worker import library_path

_OF_ANOTHER_INTERPRETER = (
    "PYTHONHOME",
    "PYTHONPLATLIBDIR",
    "PYTHONEXECUTABLE",
    "__PYVENV_LAUNCHER__",
    "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV",
    "CONDA_PROMPT_MODIFIER",
)
"""Variables that locate the library of the server's interpreter, and would mislead another one."""
_THREADS = "OMP_NUM_THREADS"


def activate(inherited: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Return the variables of a worker that runs an environment's interpreter, as if that were active.

    The variables are those that Triton's python backend sets (``ParseActivationScript`` in src/pb_utils.cc), and
    ``CONDA_PREFIX``. The worker itself calls `library_path.restore`. Of ``PYTHONPATH``, the user's entries stay and
    those of the server's own packages go; packages of the user's home directory are excluded, too, unless
    ``PYTHONNOUSERSITE`` is set to nothing.
    """
    variables = for_other_interpreter(inherited)
    variables["VIRTUAL_ENV"] = str(directory)
    variables["VIRTUAL_ENV_PROMPT"] = f"({directory})"
    if (directory / "conda-meta").is_dir():
        variables["CONDA_PREFIX"] = str(directory)
    variables["PATH"] = _prefix_path(directory / "bin", inherited.get("PATH", os.defpath))
    libraries = directory / "lib"
    if libraries.is_dir():
        before = inherited.get(library_path.NAME, "")
        variables[library_path.ORIGINAL] = before
        variables[library_path.NAME] = _prefix_path(libraries, before)
    return variables


def for_other_interpreter(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a worker with another interpreter than the server's, in no environment."""
    variables = dict(inherited)
    for name in _OF_ANOTHER_INTERPRETER:
        variables.pop(name, None)
    variables.setdefault("PYTHONNOUSERSITE", "1")
    if "PYTHONPATH" in variables:
        own = _site_packages()
        entries = variables.pop("PYTHONPATH").split(os.pathsep)
        kept = [entry for entry in entries if entry and os.path.realpath(entry) not in own]
        if kept:
            variables["PYTHONPATH"] = os.pathsep.join(kept)
    return variables


def with_threads(variables: Mapping[str, str], cpu_instances: int, cpu_threads: int) -> dict[str, str]:
    """Limit the threads of the libraries of a model with several instances to each one's share of the cores.

    Otherwise each of them uses all cores, and n instances have n times as many threads as there are cores. OpenMP,
    OpenBLAS, MKL, numexpr and PyTorch read this variable, and all but the first prefer one of their own: a user's
    setting wins either way. A single instance may use all cores, as in Triton.
    """
    if cpu_instances < 2 or _THREADS in variables:
        return dict(variables)
    return {**variables, _THREADS: str(max(1, cpu_threads))}


def _prefix_path(directory: Path, path: str) -> str:
    return os.pathsep.join([str(directory), *([path] if path else [])])


def _site_packages() -> set[str]:
    """Return the directories of the server interpreter's installed packages."""
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    paths.update(entry for entry in sys.path if os.path.basename(entry) in ("site-packages", "dist-packages"))
    return {os.path.realpath(path) for path in paths if path}
