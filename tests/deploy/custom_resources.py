"""The schemas of custom resources: KServe's from its Python client, the others from packages of npm's registry."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from node_packages import node_modules

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = ROOT / ".venv-clients" / "bin" / "python"
PACKAGES = {
    "keda.sh": "keda",
    "gateway.networking.k8s.io": "gateway-api",
    "monitoring.coreos.com": "prometheus-operator",
}
"""By the group of the API."""
_VALIDATE = """
let text = "";
process.stdin.on("data", (part) => { text += part; }).on("end", () => {
  const errors = JSON.parse(text).map(({ path, item }) => {
    try { new (require(path)[item.kind])(item).validate(); return ""; } catch (error) { return String(error); }
  });
  console.log(JSON.stringify(errors));
});
"""
_FIELDS = """
import json, re, sys
import kserve.models
import kubernetes.client

def wrong(value, type_name, place):
    if match := re.fullmatch(r"[Ll]ist\\[(.+)\\]", type_name):
        if not isinstance(value, list):
            return [f"{place}: not a list"]
        return [each for number, item in enumerate(value) for each in wrong(item, match[1], f"{place}[{number}]")]
    if match := re.fullmatch(r"[Dd]ict[([]str, (.+)[)\\]]", type_name):
        if not isinstance(value, dict):
            return [f"{place}: not a mapping"]
        return [each for key, item in value.items() for each in wrong(item, match[1], f"{place}.{key}")]
    if type_name in ("str", "int", "bool"):
        return [] if type(value).__name__ == type_name else [f"{place}: {value!r} is no {type_name}"]
    model = getattr(kserve.models, type_name, None) or getattr(kubernetes.client, type_name, None)
    if model is None or not isinstance(value, dict):
        return []
    names = {name: model.openapi_types[attribute] for attribute, name in model.attribute_map.items()}
    unknown = [f"{place}.{key}: no field of {type_name}" for key in value if key not in names]
    return unknown + [each for key in value if key in names for each in wrong(value[key], names[key], f"{place}.{key}")]

kinds = {
    "ClusterServingRuntime": "V1alpha1ClusterServingRuntime",
    "InferenceService": "V1beta1InferenceService",
    "TrainedModel": "V1alpha1TrainedModel",
}
print(json.dumps([wrong(item, kinds[item["kind"]], item["kind"]) for item in json.load(sys.stdin)]))
"""


def _run(command: Sequence[str | Path], items: object) -> list[Any]:
    done = subprocess.run(command, input=json.dumps(items), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


_known: dict[str, str] = {}
"""What the schemas have said about objects."""


def faults(items: Sequence[dict[str, Any]]) -> list[str]:
    """What the schemas of KEDA, the Gateway API and the Prometheus Operator say about each object, or nothing.

    Node, which takes half a second to start, is asked once about all that are new.
    """
    texts = [json.dumps(item, sort_keys=True) for item in items]
    new = {text: item for text, item in zip(texts, items, strict=True) if text not in _known}
    if new:
        _known.update(zip(new, _ask_node(list(new.values())), strict=True))
    return [_known[text] for text in texts]


def _ask_node(items: Sequence[dict[str, Any]]) -> list[str]:
    modules = node_modules("custom resources")
    folder = modules / "@kubernetes-models"
    work = [{"path": str(folder / PACKAGES[_group(item)] / item["apiVersion"]), "item": item} for item in items]
    return _run(["node", "-e", _VALIDATE], work)


def is_custom(item: dict[str, Any]) -> bool:
    return _group(item) in PACKAGES


def _group(item: dict[str, Any]) -> str:
    return str(item["apiVersion"]).partition("/")[0]


def kserve_faults(items: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The fields of each object that KServe's definitions do not know, or that have another type."""
    return _run([CLIENTS, "-c", _FIELDS], items)
