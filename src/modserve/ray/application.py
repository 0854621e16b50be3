"""`app`: the Ray Serve application, and its options for Ray."""

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
"""Ray's variable for using HAProxy, which does not support sequences, instead of its own proxies."""
SERVICERS = "modserve.ray.servicers.add_services"
"""Import path of the services for Ray's gRPC proxies."""
_MOST_CALLS = 10_000
"""Maximum concurrent calls that Ray sends to a replica: modserve has its own queues and limits."""


def app(
    model_repository: str | Path = "",
    *,
    target_pending: float = 4.0,
    deployment: Mapping[str, Any] | None = None,
    revision: str = "",
    **serve_options: Any,
) -> Any:
    """Return a Ray Serve application with replicas that serve models:
    ``serve.run(modserve.ray.app("s3://bucket/models"))``.

    `model_repository` must be readable on every node. `serve_options`: keywords of `modserve.Settings`, except for
    ports. `deployment`: options of Ray's ``serve.deployment`` such as ``num_replicas``, ``ray_actor_options`` and
    ``autoscaling_config``; an autoscaling configuration without a policy keeps the pending requests of each replica at
    `target_pending`. Another `revision`, any text, replaces the replicas of a running application one after the other.

    Raises `ModserveError` if Ray is not installed, or for an option without effect here.
    """
    return bind(make_settings(model_repository, serve_options), target_pending, deployment or {}, revision)


def bind(settings: Settings, target_pending: float, deployment: Mapping[str, Any], revision: str) -> Any:
    """Return the application for settings from `make_settings`. Raises `ModserveError` like `app`."""
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
    """Raise UNSUPPORTED if Ray Serve is not installed."""
    try:
        import ray.serve  # noqa: F401
    except ImportError as error:
        raise ModserveError(Code.UNSUPPORTED, f"Ray Serve is not installed: {pip_install('ray')} ({error})") from None


def make_settings(model_repository: str | Path, serve_options: Mapping[str, Any]) -> Settings:
    """Return the settings of each replica. Raises INVALID_ARG for settings that need a server's own ports."""
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
    """Add modserve's options to Ray's deployment options. Raises INVALID_ARG for options that modserve sets itself."""
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
    # Instead of Ray's log of each call: modserve has its own access log.
    return {"max_ongoing_requests": _MOST_CALLS, "logging_config": {"enable_access_log": False}, **options}
