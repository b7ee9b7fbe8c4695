"""Objects and pods of one Model, as its informers last saw them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stratos_autoscaler.kubernetes.api import Object

JOB_NAME = "batch.kubernetes.io/job-name"
"""Label of a job's pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedModel:
    """Objects that the Model owns, by kind and name, and pods of its workers and jobs."""

    objects: Mapping[tuple[str, str], Object] = field(default_factory=dict)
    pods: Sequence[Object] = ()
    job_pods: Sequence[Object] = ()
    num_busy: int | None = None
    """Requests at its workers; ``None``: not known, or not asked."""
    is_patient: bool = True
    """A Model that leaves has not yet waited for its requests as long as it may."""

    def of(self, kind: str) -> Iterator[Object]:
        """All of a kind."""
        return (found for (its, _), found in self.objects.items() if its == kind)

    def pods_of(self, job: str) -> list[Object]:
        """Pods of a job."""
        return [pod for pod in self.job_pods if (pod["metadata"].get("labels") or {}).get(JOB_NAME) == job]
