"""deploy/ray: the application's arguments are those of `modserve.ray.build`, and the pods fit their schema."""

import importlib
import inspect
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from modserve import ray
from modserve.ray.application import deployment_options

MANIFEST: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parents[2] / "deploy" / "ray" / "rayservice.yaml").read_text("utf-8")
)
CLUSTER = MANIFEST["spec"]["rayClusterConfig"]
CONFIG: dict[str, Any] = yaml.safe_load(MANIFEST["spec"]["serveConfigV2"])
GROUPS = [CLUSTER["headGroupSpec"], *CLUSTER["workerGroupSpecs"]]


def test_the_application_is_there_and_takes_its_arguments() -> None:
    (application,) = CONFIG["applications"]
    module, _, name = application["import_path"].partition(":")
    assert getattr(importlib.import_module(module), name) is ray.build
    arguments = application["args"]
    assert arguments.keys() <= inspect.signature(ray.app).parameters.keys()
    options = deployment_options(arguments["deployment"], arguments["target_pending"])
    assert options["autoscaling_config"]["policy"]["policy_function"] == "modserve.ray.scaling:PendingPolicy"


def test_the_services_of_grpc_are_there() -> None:
    (place,) = CONFIG["grpc_options"]["grpc_servicer_functions"]
    module, _, name = place.rpartition(".")
    assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.parametrize("group", GROUPS, ids=["head", "replicas"])
def test_pods_fit_their_schema_and_open_the_ports(group: dict[str, Any]) -> None:
    template = group["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": template["spec"]}
    kubernetes_validate.validate(pod, "1.30", strict=True)
    (container,) = template["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports["serve"] == CONFIG["http_options"]["port"]
    assert ports["serve-grpc"] == CONFIG["grpc_options"]["port"]


def test_a_pod_ends_after_its_replica() -> None:
    (application,) = CONFIG["applications"]
    drain = application["args"]["deployment"]["graceful_shutdown_timeout_s"]
    for group in CLUSTER["workerGroupSpecs"]:
        assert group["template"]["spec"]["terminationGracePeriodSeconds"] > drain


def test_there_are_as_many_nodes_as_replicas() -> None:
    (application,) = CONFIG["applications"]
    scaling = application["args"]["deployment"]["autoscaling_config"]
    (group,) = CLUSTER["workerGroupSpecs"]
    assert (group["minReplicas"], group["maxReplicas"]) == (scaling["min_replicas"], scaling["max_replicas"])
