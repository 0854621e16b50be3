"""What wheels have beside the source: the example models, and where MODSERVE_COMPILED is 1 the compiled form.

Without that variable a wheel is pure Python. `scripts/compiled_form.py` is what compiles.
"""

import os
import sys
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
        sys.path.insert(0, str(root / "scripts"))
        import compiled_form

        target = root / "build" / "compiled"
        for path in compiled_form.make(root, target):
            build_data["force_include"][str(path)] = str(path.relative_to(target))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def _compiles(self) -> bool:
        return self.target_name == "wheel" and os.getenv("MODSERVE_COMPILED") == "1"
