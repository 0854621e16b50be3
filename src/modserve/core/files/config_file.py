"""The configuration file of a model, and the names that people give it by mistake."""

import os
from pathlib import Path
from typing import Final

CONFIG_FILE: Final = "config.pbtxt"
_MISSPELT = ("config.pbtext", "config.pbtx", "config.pb", "config.prototxt", "config.txt", "config.pbtxt.txt")


def misspelt_config(directory: Path) -> str:
    """Return a warning for a file that is probably a misnamed configuration, if there is none."""
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return ""
    if CONFIG_FILE in names:
        return ""
    near = [name for name in names if name.lower() in (*_MISSPELT, CONFIG_FILE)]
    return f"'{directory / near[0]}' is not read: a model's configuration is called '{CONFIG_FILE}'" if near else ""


def python_tensors(model: str) -> str:
    """Return advice on giving a Python model inputs and outputs, with a configuration to copy."""
    return (
        f"the class in its model.py may add them in auto_complete_config; or write {model}/{CONFIG_FILE}, with your "
        "names, types and dims (-1 is any size):\n"
        '    backend: "python"\n'
        '    input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]\n'
        '    output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]'
    )
