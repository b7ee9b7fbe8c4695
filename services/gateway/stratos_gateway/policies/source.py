"""Policies and prompt templates, from the followed snapshot."""

from __future__ import annotations

from typing import Protocol

from stratos.core.tenancy.content import ContentPolicy, PromptTemplate
from stratos.store.records.follower import SnapshotFollower
from stratos.store.records.record import Kind


class ContentSource(Protocol):
    """Where the gateway looks them up."""

    def policy(self, name: str) -> ContentPolicy | None:
        """A policy; ``None`` where none of this name is known."""
        ...

    def template(self, tenant: str, name: str) -> PromptTemplate | None:
        """A tenant's own template, else one of all tenants; ``None`` where there is neither."""
        ...


class NoContent(ContentSource):
    """There is none."""

    def policy(self, name: str) -> ContentPolicy | None:
        """Never one."""
        return None

    def template(self, tenant: str, name: str) -> PromptTemplate | None:
        """Never one."""
        return None


NO_CONTENT = NoContent()


class SnapshotContent(ContentSource):
    """Policies and templates of a followed snapshot.

    Args:
        follower: keeps the snapshot.
    """

    def __init__(self, follower: SnapshotFollower) -> None:
        self._follower = follower

    def policy(self, name: str) -> ContentPolicy | None:
        """The newest version that is known."""
        found = self._follower.snapshot.get(Kind.POLICY, name)
        return found.value if found is not None and isinstance(found.value, ContentPolicy) else None

    def template(self, tenant: str, name: str) -> PromptTemplate | None:
        """The newest state that is known."""
        for owner in (tenant, ""):
            record = self._follower.snapshot.of_owner(Kind.TEMPLATE, owner).get(name)
            if record is not None and isinstance(record.value, PromptTemplate):
                return record.value
        return None
