"""What wheels have beside the source: the example models, and the compiled form where a C compiler is there.

Where the compiling fails, the wheel is pure Python. MODSERVE_COMPILED=1 makes that an error, as a missing compiler;
MODSERVE_COMPILED=0 compiles nothing. `scripts/compiled_form.py` is what compiles.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

EXAMPLES = "model_repository"
"""What ``modserve serve --example`` serves, 48 kB: in the package in wheels; editable installations find it here."""


class WheelContents(BuildHookInterface[Any]):
    """The build hook that ``[tool.hatch.build.hooks.custom]`` switches on."""

    def dependencies(self) -> list[str]:
        """What the compiling needs: the types of numpy and protobuf make for better code."""
        if not self._compiles():
            return []
        return list(self.config["requires"])

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and put the extension modules into the wheel, which then is for one Python on one platform."""
        if version == "editable":
            return
        root = Path(self.root)
        if self.target_name == "wheel":
            build_data["force_include"][str(root / EXAMPLES)] = "modserve/example_models"
        if not self._compiles():
            return
        try:
            form = self._compiled_form()
            build = _writable(root / "build")
            folder = form.make(root, build / "compiled", forms=build / "forms")
        except (Exception, SystemExit) as error:  # mypyc and compilers fail in many ways, some of them by sys.exit
            if _WISH == "1":
                raise
            print(f"modserve is installed as pure Python, since compiling it failed: {error}", file=sys.stderr)
            return
        for path in form.files(folder):
            build_data["force_include"][str(path)] = str(path.relative_to(folder))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def _compiles(self) -> bool:
        if self.target_name != "wheel" or _WISH == "0":
            return False
        return _WISH == "1" or bool(self._compiled_form().compiler())

    def _compiled_form(self) -> Any:
        sys.path.insert(0, str(Path(self.root) / "scripts"))
        try:
            import compiled_form
        finally:
            del sys.path[0]
        return compiled_form


_WISH = os.getenv("MODSERVE_COMPILED", "")


def _writable(folder: Path) -> Path:
    """A folder to compile in, which is elsewhere if the source's own cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return Path(tempfile.mkdtemp(prefix="modserve-compiled-"))
