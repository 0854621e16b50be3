"""The installed build of ONNX Runtime: its distribution, and the reason why a provider does not run.

``onnxruntime``, ``onnxruntime-gpu`` and others put their files into the same folder. pip installs several of them
side by side without a warning, and the last one runs.
"""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import onnxruntime as ort

from .onnx_file import model, node, value

PLAIN = "onnxruntime"
_OTHERS = ("gpu", "openvino", "directml", "qnn", "rocm", "migraphx", "cann", "vitisai", "training")
DISTRIBUTIONS = (PLAIN, *(f"{PLAIN}-{kind}" for kind in _OTHERS))

_CUDA = "CUDAExecutionProvider"
_TRIAL = """
import json, sys
import onnxruntime
model, provider, options, preload = sys.argv[1:]
if preload:
    onnxruntime.preload_dlls()
providers = [(provider, json.loads(options))]
onnxruntime.InferenceSession(bytes.fromhex(model), providers=providers, enable_fallback=0)
"""
_SMALLEST_MODEL = model([node("Identity", ["X"], "Y")], [], (value("X", (1,)), value("Y", (1,))), {"": 13})
_REASONS = r"(?:\[ONNXRuntimeError\] : \d+ : \w+ : |\[ERROR\] |\[[EW]:onnxruntime:[^\]]*\] )"
"""Prefix of the reason in a line of ONNX Runtime's log, often repeated several times."""
_LONGEST_REASON = 300


def line() -> str:
    """Return the library with its version and its providers, for the log."""
    return f"onnxruntime {ort.__version__}: {', '.join(ort.get_available_providers())}"


def find_installed() -> dict[str, str]:
    """Return the distributions in the folder that the module was loaded from, and their versions."""
    versions = {}
    for name in DISTRIBUTIONS:
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        if Path(str(distribution.locate_file("onnxruntime"))) == Path(ort.__file__).parent:
            versions[name] = distribution.version
    return versions


def conflict(distributions: Mapping[str, str], loaded: str) -> str:
    """Return a warning if the loaded files are not of the distribution that was asked for; else empty.

    `loaded` is the distribution that they are from. Besides the plain one, a requirement of modserve, another of
    the same version is no fault if its files are on top.
    """
    others = [name for name in distributions if name != PLAIN]
    if not others or len(distributions) == 1:
        return ""
    other = loaded if loaded in others else others[0]
    version = distributions[other]
    if loaded == other and len(distributions) == 2 and distributions.get(PLAIN) == version:
        return ""
    anew = "pip install --force-reinstall --no-deps"
    commands = [f"{anew} {other}=={version}"]
    if PLAIN in distributions and distributions[PLAIN] != version:
        commands.insert(0, f"{anew} {PLAIN}=={version}")
    if removed := [name for name in others if name != other]:
        commands.insert(0, f"pip uninstall -y {' '.join(removed)}")
    names = " and ".join(f"{name} {number}" for name, number in distributions.items())
    return (
        f"{names} are installed over each other, and the files are those of {loaded or 'an unknown one'}; to use "
        f"{other}: {' && '.join(commands)}"
    )


def find_loaded_distribution() -> str:
    return str(getattr(ort, "package_name", ""))


def has_cuda_wheels() -> bool:
    """Return whether NVIDIA's libraries lie next to ONNX Runtime, as pip installs them: only it finds them there."""
    return _CUDA in ort.get_available_providers() and (Path(ort.__file__).parents[1] / "nvidia").is_dir()


def preload_cuda() -> None:
    """Let CUDA's and cuDNN's libraries be found where pip puts them."""
    if has_cuda_wheels() and hasattr(ort, "preload_dlls"):  # from 1.21 on
        ort.preload_dlls()


def why_unusable(provider: str, options: Mapping[str, str]) -> str:
    """Return ONNX Runtime's reason for not using a provider; empty if it reports none.

    ONNX Runtime reports it on standard error alone, and goes on without. So a process of its own tries once more.
    """
    arguments = [_SMALLEST_MODEL.hex(), provider, json.dumps(dict(options)), "yes" if has_cuda_wheels() else ""]
    command = [sys.executable, "-c", _TRIAL, *arguments]
    try:
        trial = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return reason(trial.stderr)


def reason(log: str) -> str:
    """Return the first error in ONNX Runtime's log, or else its last warning, without the place in the source."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", log).splitlines()
    errors = [line for line in plain if "[E:onnxruntime:" in line][:1]
    lines = errors or [line for line in plain if "[W:onnxruntime:" in line][-1:]
    return "".join(re.split(_REASONS, line)[-1].strip()[:_LONGEST_REASON] for line in lines)
