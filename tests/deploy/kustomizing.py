"""``kubectl kustomize`` for tests, which needs no cluster."""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

BASE = Path(__file__).parents[2] / "deploy" / "k8s"
COMPONENTS = BASE / "components"
NO_KUBECTL = (
    "kubectl is not on PATH, and these tests render deploy/k8s with `kubectl kustomize`; no cluster is needed. "
    "On Debian: apt-get install kubernetes-client. Elsewhere: https://kubernetes.io/docs/tasks/tools/"
)

Object = dict[str, Any]
Objects = dict[str, Object]
"""By kind: there is one of each. The headless Service counts as a kind."""


def by_kind(items: Iterable[Object]) -> Objects:
    rendered = list(items)
    objects = {_kind(item): item for item in rendered}
    assert len(objects) == len(rendered), "two objects of one kind: look objects up by name here"
    return objects


def _kind(item: Object) -> str:
    return "Headless Service" if item["kind"] == "Service" and "clusterIP" in item["spec"] else str(item["kind"])


def documents(text: str) -> Iterator[Object]:
    """Those in YAML that are not empty; libyaml reads them six times as fast as Python does."""
    return filter(None, yaml.load_all(text, Loader=yaml.CSafeLoader))


def kustomize(directory: Path) -> Objects:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.fail(NO_KUBECTL, pytrace=False)
    done = subprocess.run([kubectl, "kustomize", str(directory)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", f"kustomize warns about deprecated fields: {done.stderr}"
    return by_kind(documents(done.stdout))


def kustomize_with(components: Sequence[str]) -> Objects:
    """The base with components, in this order."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        shutil.copytree(BASE, place / "k8s")
        if knows_components():
            overlay = {"resources": ["k8s"], "components": [f"k8s/components/{name}" for name in components]}
            _write(place, overlay)
            return kustomize(place)
        below, gone = place / "k8s", set()
        for name in components:  # each an overlay of those before it, by the same patches
            component = yaml.safe_load((COMPONENTS / name / "kustomization.yaml").read_text())
            assert component.keys() <= {"apiVersion", "kind", "resources", "patches"}
            patches = {patch["path"]: COMPONENTS / name / patch["path"] for patch in component.get("patches", [])}
            # It does not delete custom resources.
            deleting = patches.keys() & {"no-service-monitor.yaml"}
            gone |= {yaml.safe_load(patches.pop(path).read_text())["kind"] for path in deleting}
            overlay = {"bases": [f"../{below.name}"], "resources": component.get("resources", [])}
            below = place / name
            shutil.copytree(COMPONENTS / name, below)
            _write(below, overlay | {"patchesStrategicMerge": list(patches)})
        return {kind: item for kind, item in kustomize(below).items() if kind not in gone}


def _write(folder: Path, overlay: Object) -> None:
    head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(head | overlay))


@cache
def knows_components() -> bool:
    """Debian 12's kubectl, 1.20, is older than components."""
    done = subprocess.run(["kubectl", "version", "--client", "--output=json"], capture_output=True, text=True)
    return int(re.sub(r"\D.*", "", json.loads(done.stdout)["clientVersion"]["minor"])) >= 21
