"""Search for code in a model that its engine would run while loading it: reasons for ``Backend.code_in``."""

import os
import re
from pathlib import Path

from modserve.core.configuration.model_config import ModelConfig

from .api import Backend

_LIBRARY = re.compile(r"\.(so|dll|dylib)(\.|$)", re.IGNORECASE)


def code_in(backend: Backend, name: str, config: ModelConfig, path: Path) -> str:
    """Return what code of the repository a backend would run; empty if it would run none."""
    method: object = getattr(backend, "code_in", None)
    if not callable(method):
        return f"backend '{name}' does not say whether it runs code from model repositories"
    return str(method(config, path))


class NoCode:
    """Implementation for engines that never run code from a model repository."""

    def code_in(self, config: ModelConfig, path: Path) -> str:
        return ""


class OperatorLibraries:
    """Implementation for engines that load ``model_operations.op_library_filename`` or libraries of accelerators."""

    def code_in(self, config: ModelConfig, path: Path) -> str:
        if config.operation_libraries:
            names = ", ".join(f"'{name}'" for name in config.operation_libraries)
            return f"it needs operator libraries (model_operations.op_library_filename): {names}"
        for accelerator in (*config.gpu_accelerators, *config.cpu_accelerators):
            for key, value in accelerator.parameters.items():
                if os.sep in value or _LIBRARY.search(value):
                    return (
                        f"it names a file or folder for accelerator '{accelerator.name}' ({key}: '{value}'), which "
                        "may contain libraries or compiled engines"
                    )
        return ""
