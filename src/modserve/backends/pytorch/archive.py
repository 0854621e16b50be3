"""Identification of PyTorch files without PyTorch and without running anything in them."""

import enum
import pickletools
import zipfile
from pathlib import Path

from modserve.core.errors import ModserveError, invalid
from modserve.core.files import regular_file


class Form(enum.Enum):
    """Form of a model file; the values are for people."""

    TORCHSCRIPT = "TorchScript"
    EXPORTED = "exported program"
    COMPILED = "compiled package"
    CLASS = "class in Python"

    @property
    def words(self) -> str:
        """Name with its article."""
        return self.value if self is Form.TORCHSCRIPT else f"{'an' if self is Form.EXPORTED else 'a'} {self.value}"


_MOST_PICKLE = 16 << 20
"""Limit, in bytes, of the part of a pickle that is examined to recognise it."""
_OF_WEIGHTS = ("torch", "collections", "numpy", "_codecs")
"""Modules with classes that occur in files of tensors alone."""
_SCRIPT = "torch.jit.script(model).save('model.pt'), or torch.jit.trace"
_EXPORT = "torch.export.save(torch.export.export(model, example_inputs), 'model.pt2')"
_RUNTIME = 'put the class into model.py beside it and set runtime: "model.py" in config.pbtxt'


def form_of(path: Path) -> Form:
    """Return the form of a file. Raises INVALID_ARG if it is no model of PyTorch's, with its kind and the remedy."""
    if path.suffix == ".py":
        return Form.CLASS
    with regular_file.open_regular(path) as file:
        start = file.read(4)
    if start != b"PK\x03\x04":
        raise _no_archive(path, start)
    try:
        with zipfile.ZipFile(path) as archive:
            return _form(path, archive)
    except (zipfile.BadZipFile, EOFError, OSError, RuntimeError, ValueError) as error:
        size = path.stat().st_size
        raise invalid(
            f"'{path}' is truncated or damaged: this zip archive of {size} bytes cannot be read: {error}"
        ) from (error)


def _form(path: Path, archive: zipfile.ZipFile) -> Form:
    names = archive.namelist()
    root = names[0].partition("/")[0] if names else ""
    inner = [name.removeprefix(f"{root}/") for name in names]
    if any(name.startswith("data/aotinductor/") for name in inner):
        return Form.COMPILED
    if any(name.startswith("models/") for name in inner) or any(
        "serialized_exported_program" in name for name in names
    ):
        return Form.EXPORTED
    if "constants.pkl" in inner:
        return Form.TORCHSCRIPT
    if "data.pkl" in inner:
        with archive.open(f"{root}/data.pkl") as file:
            raise _make_refusal(path, _classes(file.read(_MOST_PICKLE)))
    raise invalid(
        f"'{path}' is a zip archive but not a PyTorch model: "
        f"it contains {', '.join(names[:3]) or 'nothing'}. Save the model with {_SCRIPT}, or with {_EXPORT}"
    )


def _no_archive(path: Path, start: bytes) -> ModserveError:
    if not start:
        return invalid(f"'{path}' is empty")
    if start[:1] == b"\x80":
        return invalid(
            f"'{path}' is a pickle, as written by old versions of torch.save; loading it would "
            f"run its code. Save the model with {_SCRIPT}, or with {_EXPORT}"
        )
    return invalid(
        f"'{path}' is not a PyTorch model: it should be a zip archive, but begins with {start!r}. Save the "
        f"model with {_SCRIPT}, or with {_EXPORT}"
    )


def _make_refusal(path: Path, classes: list[str]) -> ModserveError:
    """Return the error for a file of ``torch.save`` that holds the names of these classes."""
    foreign = [name for name in classes if name.partition(".")[0] not in _OF_WEIGHTS or name.startswith("torch.nn.")]
    modules = [name for name in foreign if not name.startswith("torch.nn.parameter.")]
    if modules:
        return invalid(
            f"'{path}' is a pickle of whole objects ({', '.join(modules[:3])}), as written by torch.save(model); "
            f"loading it would run code from the file. Save the model with {_SCRIPT}, or with {_EXPORT}"
        )
    return invalid(
        f"'{path}' contains weights without a model, as written by torch.save(model.state_dict()): {_RUNTIME}, or save "
        f"the model with {_SCRIPT}, or with {_EXPORT}"
    )


def _classes(pickle: bytes) -> list[str]:
    """Return the classes and functions that a pickle names, as far as it is readable."""
    names: list[str] = []
    texts: list[str] = []
    try:
        for operation, argument, _ in pickletools.genops(pickle):
            if operation.name == "GLOBAL":
                names.append(str(argument).replace(" ", "."))
            elif operation.name == "STACK_GLOBAL":
                names.append(".".join(texts[-2:]))
            elif isinstance(argument, str):
                texts.append(argument)
    except ValueError:  # it is longer than what was read, or damaged
        pass
    return list(dict.fromkeys(names))
