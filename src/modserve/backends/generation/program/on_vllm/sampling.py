"""Conversion of sampling parameters to vLLM's class, which validates them by its types."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from ..contract import RequestError, unknown

LORA = "lora_name"
_STRUCTURED = "structured_outputs"
_OLDER_NAMES = {"guided_decoding": _STRUCTURED}
"""Names from older versions of Triton's backend → current names."""
_OWN = frozenset({"output_kind", "output_text_buffer_length", "skip_clone"})
"""Fields set by the backend, not by clients."""


class SamplingReader:
    """Reader of sampling parameters. `kind` is vLLM's class SamplingParams, a msgspec struct.

    ``convert(fields, kind)`` creates one. `deltas` is the `output_kind` for outputs with only the new content.
    """

    def __init__(self, kind: Any, convert: Callable[[Mapping[str, Any], Any], Any], deltas: Any) -> None:
        self._kind = kind
        self._convert = convert
        self._deltas = deltas
        fields = frozenset(name for name in kind.__struct_fields__ if not name.startswith("_")) - _OWN
        self._known = fields | {LORA, *_OLDER_NAMES}

    def read(self, values: Mapping[str, Any], *, strict: bool) -> tuple[Any, str | None]:
        """Read the parameters and the adapter's name. Numbers may be texts, as sent by Triton's clients.

        Raises RequestError. Unknown names are ignored unless `strict`.
        """
        fields: dict[str, Any] = {}
        for name, value in values.items():
            if name in self._known:
                fields[_OLDER_NAMES.get(name, name)] = value
            elif strict:
                raise unknown(name, self._known)
        adapter = fields.pop(LORA, None)
        if adapter is not None and not isinstance(adapter, str):
            raise RequestError(f"sampling parameter '{LORA}' is {json.dumps(adapter)}, expected a string")
        if isinstance(fields.get("logprobs"), bool):
            fields["logprobs"] = 1 if fields["logprobs"] else None
        if _STRUCTURED in fields:
            fields[_STRUCTURED] = _read_structured(fields[_STRUCTURED])
        try:
            sampling = self._convert(fields, self._kind)
        except Exception as error:  # msgspec's type errors; vLLM's value errors, with classes that vary by version
            raise RequestError(f"sampling parameters: {_text(error)}") from None
        sampling.output_kind = self._deltas
        return sampling, adapter


def _read_structured(value: Any) -> Any:
    """Return an object, given as such or as text, without empty members. Triton's backend accepts only the text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise RequestError(f"sampling parameter '{_STRUCTURED}' is not JSON: {error}") from None
    if isinstance(value, dict):
        value = {name: rule for name, rule in value.items() if rule not in (None, False)}
    return value or None


def _text(error: Exception) -> str:
    """Rephrase msgspec's ``Expected `float`, got `str` - at `$.temperature` ``."""
    return str(error).replace(" - at `$.", " for `")
