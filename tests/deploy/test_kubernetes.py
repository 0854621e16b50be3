"""deploy/k8s renders, every object fits its schema, and the objects fit each other and the image."""

from __future__ import annotations

import copy
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from kustomizing import BASE, Object, Objects, knows_components, kustomize

import modserve.__about__

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "kubernetes.md"

CORE_KINDS = [
    "Deployment",
    "Headless Service",
    "PersistentVolumeClaim",
    "PodDisruptionBudget",
    "Service",
    "ServiceAccount",
]
# One that clusters still run, and the newest the validator knows.
VERSIONS = ["1.30", ".".join(str(kubernetes_validate.latest_version()).split(".")[:2])]


@pytest.fixture(scope="module")
def base() -> Objects:
    return kustomize(BASE)


@pytest.fixture
def objects(base: Objects) -> Objects:
    """A copy that a test may change."""
    return copy.deepcopy(base)


# --- what must hold between the objects -------------------------------------------------------------------------------


def container_of(objects: Objects) -> Object:
    containers = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert len(containers) == 1
    found: Object = containers[0]
    return found


def option(container: Object, name: str) -> str:
    values = [arg.removeprefix(f"{name}=") for arg in container["args"] if arg.startswith(f"{name}=")]
    assert len(values) == 1, f"{name} is given {len(values)} times"
    return str(values[0])


def disagreements(objects: Objects) -> list[str]:
    """Where two objects, or two parts of one, contradict each other. A schema sees none of this."""
    found: list[str] = []
    deployment, service, monitor = objects["Deployment"]["spec"], objects["Service"], objects["ServiceMonitor"]["spec"]
    template = deployment["template"]
    pod = template["spec"]
    pod_labels = template["metadata"]["labels"].items()
    container = container_of(objects)

    selectors = {
        "Deployment": deployment["selector"]["matchLabels"],
        "Service": service["spec"]["selector"],
        "PodDisruptionBudget": objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        "topologySpreadConstraints": pod["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
    }
    for owner, selector in selectors.items():
        if not selector or not selector.items() <= pod_labels:
            found.append(f"{owner} does not select the pods")
    wanted = monitor["selector"]["matchLabels"]
    if not wanted or not wanted.items() <= service["metadata"]["labels"].items():
        found.append("ServiceMonitor does not select the Service")

    container_ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    service_ports = {port["name"]: port for port in service["spec"]["ports"]}
    for name, port in service_ports.items():
        if port["targetPort"] not in container_ports:
            found.append(f"Service port {name} has no container port")
    for endpoint in monitor["endpoints"]:
        if service_ports.get(endpoint["port"], {}).get("targetPort") != "metrics":
            found.append("ServiceMonitor does not scrape the metrics port")
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        if container[probe]["httpGet"]["port"] not in container_ports:
            found.append(f"{probe} has no container port")

    if container["lifecycle"]["preStop"]["exec"]["command"][:2] != ["modserve", "drain"]:
        found.append("the pod is not drained before its end")
    drain = int(option(container, "--shutdown-delay-secs")) + int(option(container, "--exit-timeout-secs"))
    if pod["terminationGracePeriodSeconds"] <= drain:
        found.append("the pod is killed before it has drained")

    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    if {mount["name"] for mount in mounts.values()} != volumes.keys():
        found.append("volumes and mounts differ")
    models = mounts[option(container, "--model-repository")]
    claim = volumes[models["name"]]["persistentVolumeClaim"]["claimName"]
    if claim != objects["PersistentVolumeClaim"]["metadata"]["name"]:
        found.append("the model volume is not our claim")

    if pod["serviceAccountName"] != objects["ServiceAccount"]["metadata"]["name"]:
        found.append("the pod runs under another service account")
    return found


def test_objects_agree(objects: Objects) -> None:
    assert disagreements(objects) == []


def other_labels(labels: Object) -> None:
    labels["app.kubernetes.io/name"] = "another"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda o: other_labels(o["Service"]["spec"]["selector"]), "Service does not select the pods"),
        (
            lambda o: other_labels(o["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]),
            "PodDisruptionBudget does not select the pods",
        ),
        (lambda o: other_labels(o["Service"]["metadata"]["labels"]), "ServiceMonitor does not select the Service"),
        (
            lambda o: o["ServiceMonitor"]["spec"]["endpoints"][0].update(port="http"),
            "ServiceMonitor does not scrape the metrics port",
        ),
        (lambda o: o["Service"]["spec"]["ports"][1].update(targetPort="h2"), "Service port grpc has no container port"),
        (
            lambda o: container_of(o)["readinessProbe"]["httpGet"].update(port="web"),
            "readinessProbe has no container port",
        ),
        (
            lambda o: o["Deployment"]["spec"]["template"]["spec"].update(terminationGracePeriodSeconds=40),
            "the pod is killed before it has drained",
        ),
        (
            lambda o: o["PersistentVolumeClaim"]["metadata"].update(name="models"),
            "the model volume is not our claim",
        ),
        (lambda o: o["ServiceAccount"]["metadata"].update(name="m"), "the pod runs under another service account"),
    ],
)
def test_a_disagreement_is_found(objects: Objects, change: Callable[[Objects], None], message: str) -> None:
    change(objects)
    assert disagreements(objects) == [message]


# --- schemas ----------------------------------------------------------------------------------------------------------


def test_base_holds_these_objects(objects: Objects) -> None:
    assert sorted(objects) == sorted([*CORE_KINDS, "ServiceMonitor", "PrometheusRule"])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", CORE_KINDS)
def test_schema_accepts(objects: Objects, kind: str, version: str) -> None:
    assert kubernetes_validate.validate(objects[kind], version, strict=True) == version


def misspell(container: Object) -> None:
    container["readinesProbe"] = container.pop("readinessProbe")


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("Deployment", lambda d: d["spec"].update(replicas="two")),
        ("Deployment", lambda d: d["spec"].pop("selector")),
        ("Deployment", lambda d: misspell(d["spec"]["template"]["spec"]["containers"][0])),
        ("Service", lambda s: s["spec"]["ports"][0].update(port="http")),
        ("PodDisruptionBudget", lambda p: p["spec"].update(maxUnavailabel=1)),
        ("PersistentVolumeClaim", lambda c: c["spec"].update(accessModes="ReadWriteMany")),
        ("ServiceAccount", lambda a: a.update(automountServiceAccountToken="no")),
    ],
)
def test_schema_refuses_a_mistake(objects: Objects, kind: str, change: Callable[[Object], None]) -> None:
    change(objects[kind])
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(objects[kind], VERSIONS[-1], strict=True)


def test_service_monitor_has_the_operators_shape(objects: Objects) -> None:
    # The validator has no schemas of custom resources; these are the fields the operator's definition knows.
    monitor = objects["ServiceMonitor"]
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert monitor.keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert monitor["spec"].keys() == {"selector", "endpoints"}
    assert monitor["spec"]["selector"].keys() == {"matchLabels"}
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint.keys() == {"port", "path", "interval"}
    assert endpoint["path"] == "/metrics"
    assert re.fullmatch(r"\d+s", endpoint["interval"])


def test_prometheus_rule_has_the_operators_shape(objects: Objects) -> None:
    rule = objects["PrometheusRule"]
    assert rule["apiVersion"] == "monitoring.coreos.com/v1"
    assert rule.keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert rule["spec"] == yaml.safe_load((ROOT / "deploy" / "prometheus" / "modserve.rules.yaml").read_text())


# --- what the server and the image promise ----------------------------------------------------------------------------


def test_every_object_has_the_recommended_labels(objects: Objects) -> None:
    for item in objects.values():
        labels = item["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "modserve", item["kind"]
        assert "app.kubernetes.io/component" in labels, item["kind"]


def test_ports_are_the_servers_defaults(objects: Objects) -> None:
    wanted = {"http": 8000, "grpc": 8001, "metrics": 8002}
    assert {port["name"]: port["containerPort"] for port in container_of(objects)["ports"]} == wanted
    assert {port["name"]: port["port"] for port in objects["Service"]["spec"]["ports"]} == wanted
    assert all("appProtocol" in port for port in objects["Service"]["spec"]["ports"])
    assert not [arg for arg in container_of(objects)["args"] if "-port" in arg]


def test_probes_ask_the_v2_health_paths(objects: Objects) -> None:
    container = container_of(objects)
    paths = {
        probe: container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert paths == {
        "startupProbe": "/v2/health/live",
        "livenessProbe": "/v2/health/live",
        "readinessProbe": "/v2/health/ready",
    }


def test_image_is_this_version(objects: Objects) -> None:
    assert container_of(objects)["image"] == f"modserve:{modserve.__about__.__version__}"


def test_pod_runs_as_the_images_user(objects: Objects) -> None:
    (user,) = re.findall(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    context = objects["Deployment"]["spec"]["template"]["spec"]["securityContext"]
    assert (str(context["runAsUser"]), str(context["runAsGroup"])) == user


def test_pod_is_locked_down(objects: Objects) -> None:
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    container = container_of(objects)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False
    assert objects["ServiceAccount"]["automountServiceAccountToken"] is False
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts["/models"]["readOnly"] is True
    assert "readOnly" not in mounts["/tmp"]


def test_service_links_cannot_become_settings(objects: Objects) -> None:
    # A Service called modserve would put MODSERVE_PORT=tcp://… into the environment of its own pods.
    assert objects["Deployment"]["spec"]["template"]["spec"]["enableServiceLinks"] is False


def test_resources_and_rollout(objects: Objects) -> None:
    resources = container_of(objects)["resources"]
    assert resources["requests"].keys() == {"cpu", "memory"}
    assert resources["limits"]["memory"] == resources["requests"]["memory"]
    assert objects["Deployment"]["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


# --- the guide, and the machine without kubectl -----------------------------------------------------------------------


def guide_blocks(file: str) -> list[tuple[str, str]]:
    """The parts of a file in docs/kubernetes.md: how far each is indented, and its text."""
    return re.findall(
        rf"^( *)```yaml\n *# (?:more of )?{file}\n(.*?)^ *```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL
    )


def guide_overlay() -> Object:
    blocks = guide_blocks("production/kustomization.yaml")
    overlay: Object = {}
    for indent, text in blocks:
        for key, value in yaml.safe_load(re.sub(f"^{indent}", "", text, flags=re.MULTILINE)).items():
            overlay[key] = [*overlay.get(key, []), *value] if isinstance(value, list) else value
    return overlay


def test_guide_overlay_is_about_this_base(objects: Objects) -> None:
    # Read, not rendered: Debian 12 has kubectl 1.20, which renders the base but not a current overlay.
    overlay = guide_overlay()
    assert overlay["resources"] == ["../deploy/k8s"]
    (image,) = overlay["images"]
    assert container_of(objects)["image"] == f"{image['name']}:{image['newTag']}"
    for patch in overlay["patches"]:
        target = yaml.safe_load(patch["patch"])
        original = objects[target["kind"]]
        assert target["apiVersion"] == original["apiVersion"]
        assert target["metadata"]["name"] == original["metadata"]["name"]
        assert target.get("spec", {}).keys() <= original["spec"].keys()
    assert len(overlay["patches"]) == 3


@pytest.fixture
def components() -> None:
    """A kubectl that knows components and replacements, which Debian 12's own, 1.20, does not."""
    if not knows_components():
        pytest.skip("kubectl is older than 1.21, and knows neither components nor replacements")


@pytest.mark.usefixtures("components")
def test_keda_asks_about_the_overlay_s_namespace(tmp_path: Path) -> None:
    shutil.copytree(BASE, tmp_path / "k8s")
    overlay = {"resources": ["k8s"], "components": ["k8s/components/keda"], "namespace": "team-a"}
    overlay["replacements"] = guide_overlay()["replacements"]
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    (trigger,) = kustomize(tmp_path)["ScaledObject"]["spec"]["triggers"]
    assert 'namespace="team-a",pod=~"modserve-.+"' in trigger["metadata"]["query"]


def test_the_pod_that_fills_the_claim(objects: Objects) -> None:
    """It writes what the server's pods read, as their user, and its name is that of the command."""
    ((_, text),) = guide_blocks("loader.yaml")
    pod = yaml.safe_load(text)
    for version in VERSIONS:
        kubernetes_validate.validate(pod, version, strict=True)
    (container,) = pod["spec"]["containers"]
    assert container["image"].endswith(f"/{container_of(objects)['image']}")
    claim = pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"]
    assert claim == objects["PersistentVolumeClaim"]["metadata"]["name"]
    server = objects["Deployment"]["spec"]["template"]["spec"]["securityContext"]
    assert pod["spec"]["securityContext"]["runAsUser"] == server["runAsUser"]
    assert f" {pod['metadata']['name']}:{container['volumeMounts'][0]['mountPath']}\n" in GUIDE.read_text()


@pytest.mark.usefixtures("components")
def test_the_overlay_for_a_bucket(objects: Objects, tmp_path: Path) -> None:
    """The component, with the address, credentials and polling."""
    shutil.copytree(BASE, tmp_path / "deploy" / "k8s")
    overlay = guide_overlay()
    overlay["components"] = [each for each in overlay["components"] if each.endswith("/bucket")]
    overlay["patches"] = overlay["patches"][-1:]
    del overlay["replacements"]
    place = tmp_path / "production"
    place.mkdir()
    (place / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    rendered = kustomize(place)
    container, before = container_of(rendered), container_of(objects)
    mode, address = container["env"]
    assert address["valueFrom"]["configMapKeyRef"]["name"] == rendered["ConfigMap"]["metadata"]["name"]
    assert rendered["ConfigMap"]["data"] == {"address": "s3://models/triton-repo"}
    assert mode == {"name": "MODSERVE_MODEL_CONTROL_MODE", "value": "poll"}
    assert container["envFrom"] == [{"secretRef": {"name": "bucket-credentials"}}]
    assert [arg for arg in container["args"] if arg != "--repository-cache-dir=/cache"] == [
        arg for arg in before["args"] if not arg.startswith("--model-repository")
    ]
    assert rendered["Deployment"]["spec"]["replicas"] == 4


def test_missing_kubectl_is_a_failure_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(pytest.fail.Exception, match="apt-get install kubernetes-client"):
        kustomize(BASE)
