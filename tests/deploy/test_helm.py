"""The Helm chart: Helm itself renders it, every object fits its schema, and its defaults make what deploy/k8s makes."""

import copy
import itertools
import json
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import kubernetes_validate.utils
import pytest
import yaml
from custom_resources import CLIENTS, faults, is_custom
from kustomizing import BASE, COMPONENTS, Objects, by_kind, documents, kustomize, kustomize_with

import modserve.__about__

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "modserve"
VERSION = ".".join(str(kubernetes_validate.latest_version()).split(".")[:2])
RENDER = """
import json, sys
import helm_python
chart, release, many = json.load(sys.stdin)
found = []
with helm_python.Chart.load(chart) as chart:
    for values in many:
        try:
            chart.validate_schema(values)
            found.append(chart.render(values, name=release, namespace="inference"))
        except helm_python.HelmError as error:
            found.append(str(error))
print(json.dumps(found))
"""
LINT = """
import json, sys
import helm_python
print(json.dumps(helm_python.lint(sys.argv[1], strict=True, kube_version=sys.argv[2])))
"""
Values = dict[str, Any]
BUCKET = {"models": {"repository": "s3://models/triton-repo"}}
SHARED = {"models": {"repository": "s3://models/triton-repo", "cache": {"claim": "modserve-cache"}}}
ZONES = [
    {"topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"},
    {"topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"},
]
POLICY = {"create": True, "clients": {"modserve-clients": "true"}}
METRICS_KEY = {"monitoring": {"keySecret": {"name": "modserve-metrics-key"}}}
SAME: dict[str, tuple[Values, tuple[str, ...]]] = {
    "the base": ({}, ()),
    "hpa": ({"autoscaling": {"kind": "hpa"}}, ("hpa",)),
    "keda": ({"autoscaling": {"kind": "keda"}}, ("keda",)),
    "pod monitor": ({"monitoring": {"kind": "pod"}}, ("pod-monitor",)),
    "metrics key": (METRICS_KEY, ("metrics-key",)),
    "pod monitor with a key": (
        {"monitoring": {"kind": "pod", **METRICS_KEY["monitoring"]}},
        ("pod-monitor", "metrics-key"),
    ),
    "routes": ({"routes": {"gateway": "gateway"}}, ("gateway-api",)),
    "network policy": ({"networkPolicy": POLICY}, ("network-policy",)),
    "gpu": ({"gpus": 1}, ("gpu",)),
    "bucket": (BUCKET, ("bucket",)),
    "shared cache": (SHARED, ("bucket", "shared-cache")),
    "zones": ({"topologySpread": ZONES}, ("zones",)),
    "all": (
        {
            **SHARED,
            "topologySpread": ZONES,
            "gpus": 1,
            "autoscaling": {"kind": "keda"},
            "monitoring": {"kind": "pod"},
            "routes": {"gateway": "gateway"},
            "networkPolicy": POLICY,
        },
        ("keda", "pod-monitor", "gateway-api", "network-policy", "gpu", "bucket", "shared-cache", "zones"),
    ),
}
"""Values of the chart, and the components of kustomize that do the same."""


def rendered(*many: Values, release: str = "modserve") -> list[dict[str, str] | str]:
    """The files that Helm makes of the chart with these values each, or what it says against them."""
    done = subprocess.run(
        [CLIENTS, "-c", RENDER],
        input=json.dumps([str(CHART), release, many]),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, str] | str] = json.loads(done.stdout)
    return found


def objects(files: dict[str, str] | str) -> Objects:
    assert not isinstance(files, str), files
    texts = (text for name, text in files.items() if not name.endswith(".txt"))
    return by_kind(item for text in texts for item in documents(text))


@pytest.fixture(scope="module")
def chart() -> dict[str, Objects]:
    return dict(zip(SAME, map(objects, rendered(*(values for values, _ in SAME.values()))), strict=True))


# --- the same as kustomize ----------------------------------------------------------------------------------------


def without_helms_own(found: Objects) -> Objects:
    """Objects without the labels and defaults that only Helm's have."""

    def cleaned(value: Any) -> Any:
        if isinstance(value, list):
            return [cleaned(each) for each in value]
        if not isinstance(value, dict):
            return value
        own = ("app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by")
        gone = (*own, "helm.sh/chart", "helm.sh/resource-policy")
        kept = {key: cleaned(each) for key, each in value.items() if key not in gone}
        return {key: each for key, each in kept.items() if not (key == "annotations" and each == {})}

    cleaned_all: Objects = cleaned(copy.deepcopy(found))
    return cleaned_all


@cache
def made_of(components: Sequence[str]) -> Objects:
    return kustomize_with(components)


def alike(name: str, helm: Objects, kustomized: Objects) -> tuple[Objects, Objects]:
    """Both, without what differs on purpose."""
    helm, kustomized = without_helms_own(helm), copy.deepcopy(kustomized)
    container = helm["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    assert container.pop("imagePullPolicy") == "IfNotPresent"
    if "bucket" in SAME[name][1]:
        # The chart knows the address; a component takes it from a ConfigMap of the user's.
        assert container["args"].pop(1) == "--model-repository=s3://models/triton-repo"
        (variable,) = kustomized["Deployment"]["spec"]["template"]["spec"]["containers"][0].pop("env")
        assert variable["name"] == "MODSERVE_MODEL_REPOSITORY"
    if "shared-cache" in SAME[name][1]:
        del kustomized["PersistentVolumeClaim"]  # the chart takes one that exists
    spread = "topologySpreadConstraints"
    for each in (helm, kustomized):
        each["Deployment"]["spec"]["template"]["spec"][spread].sort(key=lambda item: item["topologyKey"])
    return helm, kustomized


@pytest.mark.parametrize("name", SAME)
def test_values_make_what_components_make(chart: dict[str, Objects], name: str) -> None:
    helm, kustomized = alike(name, chart[name], made_of(SAME[name][1]))
    assert helm.keys() == kustomized.keys()
    for kind, item in helm.items():
        assert item == kustomized[kind], kind


def test_each_component_has_its_values() -> None:
    assert {each for _, components in SAME.values() for each in components} == {
        each.name for each in COMPONENTS.iterdir()
    }


# --- schemas ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def schemas_are_read_once() -> Iterator[None]:
    read = kubernetes_validate.utils.schema_contents
    with patch.object(kubernetes_validate.utils, "schema_contents", cache(read)):
        yield


def check(*several: Objects) -> None:
    items = [item for found in several for item in found.values()]
    custom = [item for item in items if is_custom(item)]
    assert faults(custom) == [""] * len(custom)
    for item in items:
        if not is_custom(item):
            kubernetes_validate.validate(item, VERSION, strict=True)


MATRIX: dict[str, list[Values]] = {
    "models": [{}, BUCKET, SHARED, {"models": {"claim": {"create": False, "name": "mine"}}}],
    "scaling": [{}, {"autoscaling": {"kind": "hpa"}}, {"autoscaling": {"kind": "keda", "minReplicas": 1}}],
    "monitoring": [{}, {"monitoring": {"kind": "pod", "labels": {"release": "p"}}}, {"monitoring": {"kind": ""}}],
    "doors": [{}, {"routes": {"gateway": "g", "namespace": "n", "hostnames": ["a.example"]}, "gpus": 2}],
    "pods": [
        {},
        {
            "podLabels": {"a": "b"},
            "podAnnotations": {"c": "d"},
            "tolerations": [{"key": "k", "operator": "Exists"}],
            "nodeSelector": {"disk": "fast"},
            "affinity": {"nodeAffinity": {}},
            "image": {"repository": "r.example/m", "tag": "1", "pullSecrets": [{"name": "s"}]},
            "env": [{"name": "A", "value": "b"}],
            "envFrom": [{"secretRef": {"name": "s"}}],
            "args": ["--model-control-mode=poll"],
            "serviceAccount": {"create": False, "name": "mine"},
            "disruptionBudget": {"create": False},
            "networkPolicy": {"create": True, "clients": {"team": "a"}},
            "service": {"type": "LoadBalancer", "annotations": {"x": "y"}},
            "priorityClassName": "high",
            "runtimeClassName": "nvidia",
        },
    ],
}


TLS = {"tls": {"secret": "modserve-tls"}}
MUTUAL = {"tls": {"secret": "modserve-tls", "clientAuthority": "modserve-clients"}}
KEYS = {"keys": {"secret": "modserve-keys"}}
DIGEST = f"sha256:{'0a' * 32}"
EXTRA = {
    "extraVolumes": [{"name": "plugins", "configMap": {"name": "plugins"}}],
    "extraVolumeMounts": [{"name": "plugins", "mountPath": "/plugins"}],
}
ROLLING = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0}}
SETS: dict[str, tuple[Values, dict[str, Any]]] = {
    "nothing": ({}, {"probe": ("http", None), "arguments": [], "folders": []}),
    "keys": (KEYS, {"arguments": ["--auth-file=/etc/modserve/keys/keys.yaml"], "folders": ["keys"]}),
    "a file of keys with another name": (
        {"keys": {"secret": "s", "file": "k.json"}},
        {"arguments": ["--auth-file=/etc/modserve/keys/k.json"]},
    ),
    "TLS": (
        TLS,
        {
            "probe": ("http", "HTTPS"),
            "arguments": [
                "--http-use-ssl=true",
                "--grpc-use-ssl=true",
                "--grpc-server-cert=/etc/modserve/tls/tls.crt",
                "--grpc-server-key=/etc/modserve/tls/tls.key",
            ],
            "folders": ["tls"],
            "protocols": ["https", "https", "http"],
            "hook": False,
        },
    ),
    "mutual TLS": (
        MUTUAL,
        {
            "probe": ("metrics", None),
            "arguments": [
                "--http-use-ssl-mutual=true",
                "--grpc-use-ssl-mutual=true",
                "--grpc-root-cert=/etc/modserve/clients/ca.crt",
            ],
            "folders": ["tls", "clients"],
        },
    ),
    "keys and mutual TLS": ({**KEYS, **MUTUAL, **METRICS_KEY}, {"folders": ["keys", "tls", "clients"]}),
    "volumes": (EXTRA, {"folders": []}),
    "volumes beside secrets": ({**EXTRA, **KEYS, **SHARED}, {"folders": ["keys"]}),
    "GPUs": ({"gpus": 2}, {"strategy": {"maxUnavailable": 1, "maxSurge": 0}}),
    "a strategy": ({"gpus": 2, "strategy": ROLLING}, {"strategy": ROLLING["rollingUpdate"]}),
    "a digest": ({"image": {"tag": "1", "digest": DIGEST}}, {"image": f"modserve@{DIGEST}"}),
    "a tag": ({"image": {"tag": "1"}}, {"image": "modserve:1"}),
}
"""Values of operators, and what follows from them."""


@pytest.fixture(scope="module")
def sets() -> dict[str, Objects]:
    found = dict(zip(SETS, map(objects, rendered(*(values for values, _ in SETS.values()))), strict=True))
    faults([item for each in found.values() for item in each.values() if is_custom(item)])  # all at once
    return found


@pytest.mark.parametrize("name", SETS)
def test_what_follows_from_values(sets: dict[str, Objects], name: str) -> None:
    found, expected = sets[name], SETS[name][1]
    check(found)
    deployment = found["Deployment"]["spec"]
    pod = deployment["template"]["spec"]
    (container,) = pod["containers"]
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    folders = [key for key, mount in mounts.items() if mount["mountPath"] == f"/etc/modserve/{key}"]
    actual = {
        "probe": probes[0].get("port") and (probes[0]["port"], probes[0].get("scheme")),
        "arguments": [each for each in expected.get("arguments", ()) if each in container["args"]],
        "folders": folders,
        "protocols": [port["appProtocol"] for port in found["Service"]["spec"]["ports"]],
        "hook": "lifecycle" in container,
        "strategy": deployment["strategy"].get("rollingUpdate"),
        "image": container["image"],
    }
    assert {key: actual[key] for key in expected} == expected
    assert len({(probe["port"], probe.get("scheme")) for probe in probes}) == 1
    assert [volume["name"] for volume in pod["volumes"]] == list(mounts)
    for key in folders:  # a single file of a secret would never change in a pod that runs
        assert mounts[key]["readOnly"]
        assert "subPath" not in mounts[key]


def test_the_headless_service_selects_the_same_pods(sets: dict[str, Objects]) -> None:
    for found in sets.values():
        service, headless = found["Service"]["spec"], found["Headless Service"]["spec"]
        assert (headless["clusterIP"], headless["selector"]) == ("None", service["selector"])
        # Prometheus would find each pod twice if this one had a port for metrics.
        assert headless["ports"] == service["ports"][:2]


def merged(*several: Values) -> Values:
    made: Values = {}
    for values in several:
        made |= values
    return made


def test_every_combination_fits_the_schemas() -> None:
    combinations = [merged(*each) for each in itertools.product(*MATRIX.values())]
    customs: list[dict[str, Any]] = []
    core: dict[str, dict[str, Any]] = {}
    for files in rendered(*combinations, release="two"):
        for item in objects(files).values():
            if is_custom(item):
                customs.append(item)
            else:
                core[json.dumps(item, sort_keys=True)] = item
    assert set(faults(customs)) == {""}
    assert len(combinations) == 144
    for item in core.values():
        kubernetes_validate.validate(item, VERSION, strict=True)


def test_what_the_deployment_refers_to_is_there(chart: dict[str, Objects]) -> None:
    for name, found in chart.items():
        pod = found["Deployment"]["spec"]["template"]
        labels = pod["metadata"]["labels"].items()
        assert found["Service"]["spec"]["selector"].items() <= labels, name
        assert found["Deployment"]["spec"]["selector"]["matchLabels"].items() <= labels
        assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items() <= labels
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
        assert {mount["name"] for mount in pod["spec"]["containers"][0]["volumeMounts"]} == volumes


def test_the_values_of_the_documentation() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    (text,) = re.findall(r"^```yaml\n# values of your own\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (files,) = rendered(yaml.safe_load(text))
    found = objects(files)
    check(found)
    assert {"Deployment", "ScaledObject", "HTTPRoute", "GRPCRoute"} <= found.keys()


def test_two_releases_do_not_meet() -> None:
    names = []
    for release in ("one", "two"):
        (files,) = rendered({}, release=release)
        found = objects(files)
        names += [item["metadata"]["name"] for item in found.values()]
        assert found["Service"]["spec"]["selector"]["app.kubernetes.io/instance"] == release
    assert len(set(names)) == 2 * len({name.removeprefix("one").removeprefix("two") for name in names})


WRONG: dict[str, tuple[Values, str]] = {
    "an unknown value": ({"replica": 2}, "additional properties 'replica' not allowed"),
    "an unknown value further in": ({"models": {"repositry": "s3://m"}}, "'repositry' not allowed"),
    "a text for a number": ({"replicas": "two"}, "got string, want integer"),
    "another kind of autoscaler": ({"autoscaling": {"kind": "vpa"}}, "must be one of"),
    "a repository without a scheme": ({"models": {"repository": "bucket/models"}}, "does not match pattern"),
    "a size that is none": ({"models": {"claim": {"size": "10 GB"}}}, "does not match pattern"),
    "a digest that is none": ({"image": {"digest": "0a0a"}}, "does not match pattern"),
    "an authority for clients without TLS": ({"tls": {"clientAuthority": "ca"}}, "minLength"),
    "a volume without a name": ({"extraVolumes": [{"emptyDir": {}}]}, "missing property 'name'"),
    "an argument that is no option": ({"args": ["model-control-mode=poll"]}, "does not match pattern"),
}


def test_wrong_values_are_refused_with_their_place() -> None:
    for (name, (_, text)), found in zip(WRONG.items(), rendered(*(each for each, _ in WRONG.values())), strict=True):
        assert isinstance(found, str), name
        assert text in found, name


def test_helm_has_nothing_against_it() -> None:
    done = subprocess.run([CLIENTS, "-c", LINT, str(CHART), VERSION], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert not [each for each in found["messages"] if each["severity"] not in ("info", "INFO", 1)], found


def test_it_is_this_version() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["version"] == about["appVersion"] == modserve.__about__.__version__


MISTAKES: list[Callable[[Objects], None]] = [
    lambda found: found["ScaledObject"]["spec"].update(maxReplicaCount="ten"),
    lambda found: found["ScaledObject"]["spec"].pop("scaleTargetRef"),
    lambda found: found["HTTPRoute"]["spec"]["rules"][0]["matches"][0]["path"].update(type="Prefix"),
    lambda found: found["GRPCRoute"]["spec"]["rules"][0]["backendRefs"][0].update(port="grpc"),
    lambda found: found["PodMonitor"]["spec"].pop("selector"),
]


@pytest.fixture(scope="module")
def mistaken(chart: dict[str, Objects]) -> list[Objects]:
    made = [copy.deepcopy(chart["all"]) for _ in MISTAKES]
    for change, found in zip(MISTAKES, made, strict=True):
        change(found)
    faults([item for found in made for item in found.values() if is_custom(item)])  # all at once
    return made


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_a_mistake_is_found(mistaken: list[Objects], number: int) -> None:
    with pytest.raises(AssertionError):
        check(mistaken[number])


def test_base_and_components_fit_the_schemas() -> None:
    check(*(made_of(components) for _, components in SAME.values()), kustomize(BASE))
