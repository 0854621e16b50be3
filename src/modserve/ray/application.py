"""`app`: the Ray Serve application, and what Ray is told of it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from modserve.core.errors import Code, ModserveError, invalid
from modserve.core.pip_command import pip_install
from modserve.settings import Settings

NAME = "modserve"
"""Name of the deployment, and by default of the application."""
HAPROXY = "RAY_SERVE_ENABLE_HA_PROXY"
"""The variable of Ray that puts HAProxy, which knows nothing of sequences, in the place of its proxies."""
SERVICERS = "modserve.ray.servicers.add_services"
"""Import path of the services for Ray's gRPC proxies."""
_MOST_CALLS = 10_000
"""Calls that Ray may send to a replica at a time: modserve has queues and limits of its own."""


def app(
    model_repository: str | Path = "",
    *,
    target_pending: float = 4.0,
    deployment: Mapping[str, Any] | None = None,
    revision: str = "",
    **serve_options: Any,
) -> Any:
    """A Ray Serve application whose replicas serve the models: ``serve.run(modserve.ray.app("s3://bucket/models"))``.

    `model_repository` has to be readable on every node. `serve_options` are keywords of `modserve.Settings`, without
    those of ports. `deployment` are options of Ray's ``serve.deployment``: ``num_replicas``, ``ray_actor_options``,
    ``autoscaling_config`` and so on; with an autoscaling configuration that has no policy, there are as many replicas
    as keep the pending requests of each at `target_pending`. Another `revision`, any text, replaces the replicas of an
    application that runs, one after the other.

    Raises `ModserveError` if Ray is not installed, or for an option that has no effect here.
    """
    return bind(make_settings(model_repository, serve_options), target_pending, deployment or {}, revision)


def bind(settings: Settings, target_pending: float, deployment: Mapping[str, Any], revision: str) -> Any:
    """Return the application of settings from `make_settings`. Raises `ModserveError` as `app` does."""
    if target_pending <= 0:
        raise invalid(f"target_pending is {target_pending}, expected a number above 0")
    options = deployment_options(dict(deployment), target_pending)
    check_installed()
    from .replica import deployment_class

    sticky = os.environ.get(HAPROXY) != "1"
    return deployment_class(sticky).options(**options).bind(settings, revision, sticky)


def build(arguments: Mapping[str, Any]) -> Any:
    """Build `app` from a mapping of keywords: ``import_path: modserve.ray:build`` in a configuration of Ray Serve."""
    return app(**arguments)


def check_installed() -> None:
    """Raises UNSUPPORTED where Ray Serve is not installed."""
    try:
        import ray.serve  # noqa: F401
    except ImportError as error:
        raise ModserveError(Code.UNSUPPORTED, f"Ray Serve is not installed: {pip_install('ray')} ({error})") from None


def make_settings(model_repository: str | Path, serve_options: Mapping[str, Any]) -> Settings:
    """Return the settings of each replica. Raises INVALID_ARG for those that only a server with its own ports has."""
    options = dict(serve_options)
    if model_repository:
        options["model_repository"] = model_repository
    try:
        settings = Settings(**options)
    except ValidationError as error:
        texts = (each["msg"].removeprefix("Value error, ") for each in error.errors())
        raise invalid(f"options of the server: {'; '.join(texts)}") from None
    return check_settings(settings)


def check_settings(settings: Settings) -> Settings:
    """Return the settings unchanged. Raises INVALID_ARG for settings without effect in a replica."""
    if settings.workers > 1:
        raise invalid("workers cannot be set on Ray: it has replicas instead; set num_replicas")
    if settings.audit_log:
        raise invalid("audit_log cannot be set on Ray: its proxies log the calls")
    return settings


def deployment_options(options: dict[str, Any], target_pending: float) -> dict[str, Any]:
    """Add modserve's options to those of Ray's deployment. Raises INVALID_ARG for those that modserve decides."""
    for name in ("request_router_config", "deployment_actors"):
        if name in options:
            raise invalid(
                f"deployment option '{name}' cannot be set: modserve's own keeps sequences and changes together"
            )
    scaling = options.get("autoscaling_config")
    if isinstance(scaling, Mapping) and "policy" not in scaling:
        policy = {
            "policy_function": "modserve.ray.scaling:PendingPolicy",
            "policy_kwargs": {"target_pending": target_pending},
        }
        options["autoscaling_config"] = {**scaling, "policy": policy}
    # Ray would log each call; modserve has an access log of its own.
    return {"max_ongoing_requests": _MOST_CALLS, "logging_config": {"enable_access_log": False}, **options}
