"""How Ray chooses the replica of a call: that of the session, or the less busy one of two."""

import random
from typing import Any

from ray.serve.request_router import RequestRouter

from .sessions import owner


class SessionRouter(RequestRouter):  # type: ignore[misc] # Ray is not there for type checkers
    """A request router of Ray Serve. Calls with a session id go to its replica, whatever that has to do."""

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:
        """As Ray calls it: groups of replicas, of which the less busy one of the first group gets the call."""
        if not candidate_replicas:
            return []
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        session = "" if pending_request is None else pending_request.metadata.session_id
        if session:
            by_name = {str(each.replica_id.unique_id): each for each in candidate_replicas}
            return [[by_name[owner(session, by_name)]]]
        return [random.sample(candidate_replicas, min(2, len(candidate_replicas)))]
