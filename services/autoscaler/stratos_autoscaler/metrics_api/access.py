"""Access of users: the API server decides (SubjectAccessReview), and its answer is remembered for a while."""

from __future__ import annotations

from dataclasses import dataclass

from stratos.common.clock import Clock
from stratos_autoscaler.kubernetes.api import ApiServer, Object
from stratos_autoscaler.metrics_api.documents import GROUP, VERSION
from stratos_autoscaler.metrics_api.front_proxy import User

REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
MAX_REMEMBERED = 1024


@dataclass(frozen=True, slots=True)
class Question:
    """A metric of a namespace that a user wants to read."""

    namespace: str
    metric: str


class MetricsAccess:
    """Belongs to the event loop.

    Args:
        api: of the cluster.
        ttl_s: how long an answer is remembered.
        clock: monotonic.
    """

    def __init__(self, api: ApiServer, ttl_s: float, clock: Clock) -> None:
        self._api = api
        self._ttl_s = ttl_s
        self._clock = clock
        self._answers: dict[tuple[object, ...], tuple[float, bool]] = {}

    async def may(self, user: User, question: Question) -> bool:
        """Whether the user may. Raises like ``ApiServer.call``."""
        now = self._clock.now()
        key = (user.name, user.groups, tuple(sorted(user.extra.items())), question)
        known = self._answers.get(key)
        if known is not None and now - known[0] <= self._ttl_s:
            return known[1]
        _, review = await self._api.call("POST", REVIEWS, _review(user, question))
        status = review.get("status") or {}
        is_allowed = bool(status.get("allowed")) and not status.get("denied")
        if len(self._answers) >= MAX_REMEMBERED:
            self._answers.clear()
        self._answers[key] = now, is_allowed
        return is_allowed


def _review(user: User, question: Question) -> Object:
    spec: Object = {
        "user": user.name,
        "groups": list(user.groups),
        "extra": {name: list(values) for name, values in user.extra.items()},
    }
    # A metric is read as a list of its values, which is the verb that HPAs are granted.
    spec["resourceAttributes"] = {
        "namespace": question.namespace,
        "verb": "list",
        "group": GROUP,
        "version": VERSION,
        "resource": question.metric,
    }
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
