"""Which revision a request for an alias gets: by weight, the same one for a session or a tenant while weights stay.

targets that have live workers ──▶ one of them, by weighted rendezvous hashing: a weight that grows takes sessions
                                   from others and moves no other one
none has                       ──▶ those of the change before, which go on until the new ones are there, and are dropped
                                   from the record then: see ``access.moved_aliases``
none of these, either          ──▶ one of the targets, whose requests wait for workers or are told that there are none
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Protocol

from stratos.store.models.alias_forms import pinned, split_name
from stratos.store.models.alias_record import AliasRecord, AliasTarget, Sticky
from stratos.store.models.model_record import ModelRecord
from stratos.store.records.followed_snapshot import FollowedSnapshot
from stratos.store.records.follower import SnapshotFollower
from stratos.store.records.record import Kind, Record, value_as
from stratos_gateway.models.model_set import ModelSet
from stratos_gateway.models.served_model import ServedModel

MAX_DEPTH = 4
"""Aliases that lead to one another, the split of a model by its own name not counted. The admin API refuses more, and
loops; records that loop end here."""


class AliasSource(Protocol):
    """Where the gateway looks aliases up."""

    def find(self, name: str) -> AliasRecord | None:
        """The alias of a name; ``None`` where there is none."""
        ...

    def list(self) -> Sequence[AliasRecord]:
        """All of them, by name."""
        ...


class NoAliases(AliasSource):
    """No name is one."""

    def find(self, name: str) -> AliasRecord | None:
        """None."""
        return None

    def list(self) -> Sequence[AliasRecord]:
        """None."""
        return ()


class SnapshotAliases(AliasSource):
    """Aliases of a followed snapshot.

    Args:
        follower: keeps the snapshot.
        models: told whether it matters which revisions have live workers.
    """

    def __init__(self, follower: SnapshotFollower, models: ModelSet) -> None:
        self._follower = follower
        self._models = models
        self._split: set[str] = set()
        """Names that have a choice."""
        self._moving: set[str] = set()
        """Names whose targets of before are kept."""
        follower.snapshot.on_record(Kind.ALIAS, self._note)

    def find(self, name: str) -> AliasRecord | None:
        """The record of the name, unless it is a tombstone."""
        return value_as(AliasRecord, self._follower.snapshot.get(Kind.ALIAS, name))

    def list(self) -> Sequence[AliasRecord]:
        """Without those that are deleted."""
        found = (record.value for record in self._follower.snapshot.of_kind(Kind.ALIAS))
        return [value for value in found if isinstance(value, AliasRecord)]

    def moving(self) -> Sequence[AliasRecord]:
        """Aliases whose targets of before go on until new ones have workers."""
        return [alias for alias in map(self.find, sorted(self._moving)) if alias is not None]

    def _note(self, record: Record) -> None:
        alias = value_as(AliasRecord, record)
        for names, is_one in (
            (self._split, alias is not None and len(alias.targets + alias.before) > 1),
            (self._moving, alias is not None and bool(alias.before)),
        ):
            (names.add if is_one else names.discard)(record.id)
        self._models.note_aliases(has_choice=bool(self._split))


class AliasChoice:
    """Chooses among the targets of aliases.

    Args:
        source: of the aliases.
        models: what is served.
        rng: draws for requests that stick to nothing.
    """

    def __init__(self, source: AliasSource, models: ModelSet, rng: Random) -> None:
        self.source = source
        self._models = models
        self._rng = rng

    def pick(self, alias: AliasRecord, tenant: str, session: str = "") -> ServedModel | None:
        """The revision that a request gets.

        Args:
            alias: what it names.
            tenant: id of its tenant.
            session: what its client calls its session; "" for none.

        Returns:
            ``None`` where no target is served.
        """
        return self._pick(alias, tenant, session, MAX_DEPTH)

    def arms(self, alias: AliasRecord) -> list[tuple[AliasTarget, ServedModel]]:
        """Targets that are served, with the revision that a request without tenant and session gets."""
        return self._served(alias.targets, lambda target: self._target(target, "", "", MAX_DEPTH))

    def open_now(self, alias: AliasRecord) -> list[tuple[AliasTarget, ServedModel]]:
        """Targets that new requests go to, those of before included, as ``arms`` has them."""
        return self._open(alias, "", "", MAX_DEPTH)

    def meant(self, name: str, depth: int = MAX_DEPTH) -> Iterator[tuple[str, str]]:
        """Models that a name leads to, over other names, too, and first digits of their revisions, empty for any."""
        if (alias := self.source.find(name)) is None:
            yield pinned(name) or (split_name(name)[0], "")
            return
        for target in alias.targets:
            if target.digest:
                yield target.model, target.digest
            elif depth:
                yield from self.meant(target.model, depth - 1)

    def has_workers(self, alias: AliasRecord) -> bool:
        """Whether one of its targets had live workers at the last look."""
        return bool(self._live(self.arms(alias)))

    def _open(self, alias: AliasRecord, tenant: str, session: str, depth: int) -> list[tuple[AliasTarget, ServedModel]]:
        def revision(target: AliasTarget) -> ServedModel | None:
            return self._target(target, tenant, session, depth)

        arms = self._served(alias.targets, revision)
        return self._live(arms) or self._live(self._served(alias.before, revision)) or arms

    def _pick(self, alias: AliasRecord, tenant: str, session: str, depth: int) -> ServedModel | None:
        if not (open_to := self._open(alias, tenant, session, depth)):
            return None
        if len(open_to) == 1:
            return open_to[0][1]
        who = self._who(alias.sticky, tenant, session)
        return min(open_to, key=lambda arm: _rank(alias.name, arm[0], who))[1]

    def _target(self, target: AliasTarget, tenant: str, session: str, depth: int) -> ServedModel | None:
        if target.digest:
            served = self._models.of_digest(target.digest)
            return served if served is not None and served.base.name == target.model else None
        if (alias := self.source.find(target.model)) is not None:
            left = depth if alias.is_split else depth - 1
            return self._pick(alias, tenant, session, left) if left else None
        return self._models.get(target.model)

    def _served(
        self, targets: Iterable[AliasTarget], revision: Callable[[AliasTarget], ServedModel | None]
    ) -> list[tuple[AliasTarget, ServedModel]]:
        found = ((target, revision(target)) for target in targets)
        return [(target, served) for target, served in found if served is not None]

    def _live(self, arms: Iterable[tuple[AliasTarget, ServedModel]]) -> list[tuple[AliasTarget, ServedModel]]:
        return [arm for arm in arms if self._models.is_live(arm[1].base.digest)]

    def _who(self, sticky: Sticky, tenant: str, session: str) -> str:
        if sticky is Sticky.REQUEST:
            return str(self._rng.random())
        return f"{tenant}\0{session}" if session and sticky is Sticky.SESSION else tenant


def succeeding(alias: AliasRecord, old: Record | None, choice: AliasChoice, models: ModelSet) -> AliasRecord:
    """The alias with the targets that go on until its own have workers: where its requests go now.

    Args:
        alias: as it is to be.
        old: the version that it follows; that of a name that was no alias is ``None`` or a tombstone.
        choice: says which targets have workers.
        models: say where requests for a model's own name go without an alias.
    """
    known = value_as(AliasRecord, old)
    if known is not None:
        before = known.before if known.before and not choice.has_workers(known) else known.targets
    elif (current := models.get(alias.name)) is not None:
        before = (AliasTarget(model=alias.name, digest=current.base.digest),)
    else:
        return alias
    places = {(target.model, target.digest) for target in alias.targets}
    is_new = any((target.model, target.digest) not in places for target in before)
    return replace(alias, before=before if is_new else ())


def aliases_of(snapshot: FollowedSnapshot) -> Mapping[str, AliasRecord]:
    """All aliases by name."""
    found = (record.value for record in snapshot.of_kind(Kind.ALIAS))
    return {alias.name: alias for alias in found if isinstance(alias, AliasRecord)}


def revisions_of(snapshot: FollowedSnapshot, models: ModelSet) -> Mapping[str, str]:
    """Name of every revision by digest, those of settings included."""
    recorded = (record.value for record in snapshot.of_kind(Kind.MODEL))
    found = {model.digest: model.name for model in recorded if isinstance(model, ModelRecord)}
    return {model.base.digest: model.base.name for model in models.revisions} | found


def _rank(alias: str, target: AliasTarget, who: str) -> float:
    """The lowest one of all targets wins; each wins as often as its weight says."""
    text = "\0".join((alias, target.model, target.digest, who))
    drawn = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
    return -math.log((drawn + 1) / (2**64 + 1)) / target.weight
