"""``modserve ray deploy``: serve a model repository on a cluster of Ray."""

from argparse import Namespace
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from modserve.core.errors import invalid
from modserve.ray import application
from modserve.settings import OptionError, from_command_line

from .syntax import UsageError, option, parser

PARSER = parser(
    "ray",
    "Serves models on a cluster of Ray: each replica is a server in a process that Ray places and restarts. The "
    "repository has to be readable on every node.\n"
    "Deploying again replaces the replicas one after the other, which read the repository anew.",
    "  modserve ray deploy --model-repository s3://bucket/models --replicas 3\n"
    "  modserve ray deploy --model-repository /shared/models --max-replicas 8 --target-pending 4 --gpus 1",
    "0 deployed, 1 not deployed (the reason is printed), 2 wrong command line",
    usage="deploy [options]",
)
PARSER.add_argument("action", choices=("deploy",), help="What to do.")
option(
    PARSER,
    "--address ADDRESS",
    "The cluster, as ray.init has it: auto, HOST:PORT or ray://HOST:PORT. [default: auto]",
    default="auto",
)
option(PARSER, "--name NAME", f"Name of the application. [default: {application.NAME}]", default=application.NAME)
option(PARSER, "--route-prefix PATH", "What the paths of REST calls begin with. [default: /]", default="/")
option(PARSER, "--replicas N", "Number of replicas. [default: 1]", type=int)
option(
    PARSER,
    "--min-replicas N",
    "With --max-replicas: as few as this while there is little to do. [default: 1]",
    type=int,
)
option(PARSER, "--max-replicas N", "As many as this while there is much to do, instead of --replicas.", type=int)
option(
    PARSER,
    "--target-pending N",
    "With --max-replicas: requests that wait or run in each replica. [default: 4]",
    type=float,
    default=4.0,
)
option(PARSER, "--cpus N", "CPUs that Ray reserves for a replica. [default: 1]", type=float, default=1.0)
option(PARSER, "--gpus N", "GPUs that Ray reserves for a replica. [default: 0]", type=float, default=0.0)
option(
    PARSER,
    "--http-host ADDRESS",
    "Where Ray's HTTP proxies listen, if Serve is not running yet. [default: 0.0.0.0]",
    default="0.0.0.0",
)
option(PARSER, "--http-port PORT", "Their port. [default: 8000]", type=int, default=8000)
option(PARSER, "--grpc-port PORT", "The port of Ray's gRPC proxies; 0: none. [default: 8001]", type=int, default=8001)


def work(options: Namespace) -> int:
    """Run the command and return the exit code."""
    settings = application.check_settings(settings_of(options.server_words))
    deployment = deployment_of(options)
    application.check_installed()
    import ray
    from ray import serve
    from ray.serve.config import HTTPOptions, gRPCOptions

    ray.init(address=options.address, log_to_driver=False, logging_level="warning")
    grpc = gRPCOptions(port=options.grpc_port, grpc_servicer_functions=[application.SERVICERS])
    serve.start(
        proxy_location="EveryNode",
        http_options=HTTPOptions(host=options.http_host, port=options.http_port),
        grpc_options=grpc if options.grpc_port else None,
    )
    revision = datetime.now(UTC).isoformat(timespec="seconds")
    app = application.bind(settings, options.target_pending, deployment, revision)
    try:
        serve.run(app, name=options.name, route_prefix=options.route_prefix)
    except RuntimeError as error:
        raise invalid(
            f"Ray could not deploy '{options.name}': {reason(serve.status(), options.name) or error}"
        ) from None
    print(f"{options.name}: deployed, revision {revision}")
    return 0


def reason(status: Any, name: str) -> str:
    """Return Ray's messages on the failed deployments of an application; empty if there is no such application."""
    application = status.applications.get(name)
    deployments = {} if application is None else application.deployments
    # The last line of a traceback, without the name of the exception.
    lines = [each.message.strip().rpartition("\n")[2] for each in deployments.values()]
    return "; ".join(line.removeprefix("modserve.core.errors.ModserveError: ") for line in lines if line)


def settings_of(words: Sequence[str]) -> Any:
    """Read the servers' settings from their options. Raises UsageError."""
    try:
        return from_command_line(words).settings
    except OptionError as error:
        raise UsageError(str(error)) from None


def deployment_of(options: Namespace) -> dict[str, Any]:
    """Return the options of Ray's deployment. Raises UsageError for inconsistent numbers."""
    resources = {"num_cpus": options.cpus, "num_gpus": options.gpus}
    if options.max_replicas is None:
        if options.min_replicas is not None:
            raise UsageError("option '--min-replicas' requires '--max-replicas'")
        replicas = 1 if options.replicas is None else options.replicas
        if replicas < 1:
            raise UsageError(f"option '--replicas': expected 1 or more, got: {replicas}")
        return {"num_replicas": replicas, "ray_actor_options": resources}
    if options.replicas is not None:
        raise UsageError("options '--replicas' and '--max-replicas' cannot go together")
    least = 1 if options.min_replicas is None else options.min_replicas
    if not 1 <= least <= options.max_replicas:
        raise UsageError(
            f"option '--min-replicas': expected 1 to {options.max_replicas}, which is --max-replicas, got: {least}"
        )
    return {
        "autoscaling_config": {"min_replicas": least, "max_replicas": options.max_replicas},
        "ray_actor_options": resources,
    }
