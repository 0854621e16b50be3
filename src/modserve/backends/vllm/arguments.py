"""The server's own reading of ``model.json``: its validity, and the place of its weights."""

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modserve.core.errors import ModserveError, invalid
from modserve.core.files import regular_file

FILENAME = "model.json"
_OF_XGBOOST = "learner"


def read(path: Path) -> dict[str, Any]:
    """Read the arguments of vLLM's engine. Raises INVALID_ARG, with the place of a fault."""
    if not path.is_file():
        raise invalid(f"unable to find '{path}', which has the arguments of vLLM's engine, at least \"model\"")
    try:
        arguments = json.loads(regular_file.read_text(path))
    except json.JSONDecodeError as error:
        raise invalid(f"'{path}' is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise invalid(f"'{path}' cannot be read: {error}") from None
    if isinstance(arguments, dict) and isinstance(arguments.get("model"), str) and arguments["model"]:
        return arguments
    if isinstance(arguments, dict) and _OF_XGBOOST in arguments:
        raise _wrong(path, "it looks like a model of XGBoost: call it 'xgboost.json'")
    near = difflib.get_close_matches("model", arguments, n=1, cutoff=0.7) if isinstance(arguments, dict) else ()
    hint = f"; it has '{near[0]}': did you mean 'model'?" if near and near[0] != "model" else ""
    raise _wrong(
        path, f'expected an object with "model": the folder of the weights, or their name at Hugging Face{hint}'
    )


def weights(path: Path, arguments: Mapping[str, Any]) -> Path | None:
    """Return the folder with the model's files, if it is here. A path may also be relative to the file `path`."""
    for place in (Path(arguments["model"]), path.parent / arguments["model"]):
        if place.is_dir():
            return place
    return None


def _wrong(path: Path, fault: str) -> ModserveError:
    return invalid(f"'{path}' does not have the arguments of vLLM's engine: {fault}")
