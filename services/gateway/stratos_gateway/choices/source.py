"""Rules of the model ``auto``, from the followed snapshot."""

from __future__ import annotations

from typing import Protocol

from stratos.store.models.choice_rules import AUTO, ChoiceRules
from stratos.store.records.follower import SnapshotFollower
from stratos.store.records.record import Kind, value_as


class ChoiceSource(Protocol):
    """Where the gateway looks them up."""

    def find(self, tenant: str) -> ChoiceRules | None:
        """Rules of a tenant by its name, else those of all tenants; ``None`` where there are neither."""
        ...


class NoChoices(ChoiceSource):
    """There are none."""

    def find(self, tenant: str) -> ChoiceRules | None:
        """None."""
        return None


NO_CHOICES = NoChoices()


class SnapshotChoices(ChoiceSource):
    """Rules of a followed snapshot.

    Args:
        follower: keeps the snapshot.
    """

    def __init__(self, follower: SnapshotFollower) -> None:
        self._follower = follower

    def find(self, tenant: str) -> ChoiceRules | None:
        """The newest state that is known."""
        for owner in (tenant, ""):
            record = self._follower.snapshot.of_owner(Kind.CHOICE, owner).get(AUTO)
            if (found := value_as(ChoiceRules, record)) is not None:
                return found
        return None
