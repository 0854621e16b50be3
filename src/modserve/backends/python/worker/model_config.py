"""`ModelConfig`: the configuration that `auto_complete_config` completes. Its errors are Triton's."""

import json
from typing import Any, Dict, List, Optional

_INPUT_PROPERTIES = ("name", "data_type", "dims", "optional")
_OUTPUT_PROPERTIES = ("name", "data_type", "dims")


class ModelConfig:
    """The setters for `max_batch_size`, inputs, outputs, the transaction policy and dynamic batching raise ValueError
    if the value contradicts the configuration.
    """

    def __init__(self, model_config: str) -> None:
        """Read a configuration from JSON text."""
        self._model_config: Dict[str, Any] = json.loads(model_config)

    def as_dict(self) -> Dict[str, Any]:
        return self._model_config

    def _name(self) -> str:
        return str(self._model_config.get("name", ""))

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set the value. It must not be below the configuration's."""
        configured = self._model_config.get("max_batch_size", 0)
        if configured > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {configured}, but in auto-complete-config function for model "
                f"'{self._name()}' specified max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Set the dynamic batcher. Keeps the options of a configured one."""
        for scheduler in ("sequence_batching", "ensemble_scheduling"):
            if scheduler in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{scheduler}', but auto-complete-config function "
                    f"for model '{self._name()}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, transaction_policy_dict: Dict[str, Any]) -> None:
        """Set the policy. The only property is `decoupled`."""
        if any(name != "decoupled" for name in transaction_policy_dict):
            raise ValueError(
                f"model transaction property in auto-complete-config function for model '{self._name()}' contains "
                "property other than 'decoupled'."
            )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" not in transaction_policy_dict:
            return
        decoupled = transaction_policy_dict["decoupled"]
        if policy.get("decoupled", decoupled) != decoupled:
            raise ValueError(
                f"trying to change decoupled property in auto-complete-config for model '{self._name()}', which is "
                f"already set to '{policy['decoupled']}'."
            )
        policy["decoupled"] = decoupled

    def add_input(self, input: Dict[str, Any]) -> None:
        """Add an input: `name`, `data_type` and `dims`, optionally `optional`. A configured input may omit some."""
        self._add("input", _INPUT_PROPERTIES, "'name', 'data_type', 'dims' and 'optional'", input)

    def add_output(self, output: Dict[str, Any]) -> None:
        """Add an output: `name`, `data_type` and `dims`. A configured output may omit some."""
        self._add("output", _OUTPUT_PROPERTIES, "'name', 'data_type' and 'dims'", output)

    def _add(self, kind: str, properties: "tuple[str, ...]", listed: str, tensor: Dict[str, Any]) -> None:
        where = f"in auto-complete-config function for model '{self._name()}'"
        if any(name not in properties for name in tensor):
            raise ValueError(f"{kind} '{tensor.get('name', '')}' {where} contains property other than {listed}.")
        if "name" not in tensor:
            raise ValueError(f"{kind} {where} is missing 'name' property.")
        for name in ("data_type", "dims"):
            if name not in tensor:
                raise ValueError(f"{kind} '{tensor['name']}' {where} is missing '{name}' property.")
        configured: List[Dict[str, Any]] = self._model_config.setdefault(kind, [])
        for known in configured:
            if known["name"] == tensor["name"]:
                problem = self._contradiction(kind, known, tensor)
                if problem is not None:
                    raise ValueError(problem)
                known.update(tensor)
                return
        configured.append(tensor)

    def _contradiction(self, kind: str, known: Dict[str, Any], tensor: Dict[str, Any]) -> Optional[str]:
        data_type = known.get("data_type", "TYPE_INVALID")
        if data_type not in ("TYPE_INVALID", tensor["data_type"]):
            return (
                f"unable to load model '{self._name()}', configuration expects datatype {data_type} for {kind} "
                f"'{tensor['name']}', model provides {tensor['data_type']}"
            )
        for name in ("dims", "optional"):
            # Dimensions that are not configured are an empty list; an `optional` that is absent may still be set.
            is_open = not known.get("dims") if name == "dims" else name not in known or name not in tensor
            if not is_open and known[name] != tensor[name]:
                return (
                    f"model '{self._name()}', tensor '{tensor['name']}': the model expects {name} {tensor[name]} but "
                    f"the model configuration specifies {name} {known[name]}"
                )
        return None
