"""Choice of the replica for a call: by its session, or its model, or the less busy one of two."""

from typing import Any

from ray.serve.request_router import RequestRouter

from .sessions import candidates


class SessionRouter(RequestRouter):  # type: ignore[misc] # Ray is not there for type checkers
    """A request router of Ray Serve. Calls with a session id go to its replica, however busy it is."""

    def update_replicas(self, replicas: list[Any]) -> None:
        """Update the replicas. Ray calls it on a copy of this class from a pickle: hence the import."""
        from modserve.ray import sessions

        super().update_replicas(replicas)
        sessions.learn(str(each.replica_id.unique_id) for each in replicas)

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:
        """Return groups of replicas for Ray, which gives the call to the less busy one of the first group."""
        if not candidate_replicas:
            return []
        session, model = "", ""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
            session, model = pending_request.metadata.session_id, pending_request.metadata.multiplexed_model_id
        by_name = {str(each.replica_id.unique_id): each for each in candidate_replicas}
        return [[by_name[name] for name in candidates(session, model, by_name)]]
