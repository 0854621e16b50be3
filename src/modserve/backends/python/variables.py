"""Environment variables of a worker process.

A worker inherits the server's variables, so that the user's settings reach the model, and gets

- ``OMP_NUM_THREADS``, see `with_threads`;
- for an interpreter in its own environment, the variables of activating it (`activate`).
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
"""Variables that locate the library of the server's interpreter and would break another one."""
_THREADS = "OMP_NUM_THREADS"


def activate(inherited: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Return the variables of a worker with an environment's interpreter, as if the environment were active.

    Sets the same variables as Triton's Python backend (``ParseActivationScript`` in src/pb_utils.cc), and
    ``CONDA_PREFIX``. The worker itself calls `library_path.restore`. ``PYTHONPATH`` keeps the user's entries and loses
    the server's packages. User site packages are excluded unless ``PYTHONNOUSERSITE`` is set to an empty value.
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
    """Return the variables of a worker with another interpreter than the server's, outside of an environment."""
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
    """Limit the library threads of each of several instances to its share of the cores.

    Otherwise n instances would have n times as many threads as cores. OpenMP, OpenBLAS, MKL, numexpr and PyTorch read
    this variable; all but OpenMP prefer a variable of their own, so a user's setting takes precedence. A single
    instance may use all cores, as in Triton.
    """
    if cpu_instances < 2 or _THREADS in variables:
        return dict(variables)
    return {**variables, _THREADS: str(max(1, cpu_threads))}


def _prefix_path(directory: Path, path: str) -> str:
    return os.pathsep.join([str(directory), *([path] if path else [])])


def _site_packages() -> set[str]:
    """Return the package directories of the server's interpreter."""
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    paths.update(entry for entry in sys.path if os.path.basename(entry) in ("site-packages", "dist-packages"))
    return {os.path.realpath(path) for path in paths if path}
