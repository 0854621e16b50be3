"""The place of the example models: in the installed package, or next to its source."""

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def example_models() -> Path:
    """Return the examples' repository, which is never written to. Raises ValueError where an installation lacks it."""
    for place in (_PACKAGE / "example_models", *(above / "model_repository" for above in _PACKAGE.parents[1:3])):
        if (place / "simple" / "config.pbtxt").is_file():
            return place
    raise ValueError(f"the example models are not in {_PACKAGE / 'example_models'}: install modserve from its wheel")
