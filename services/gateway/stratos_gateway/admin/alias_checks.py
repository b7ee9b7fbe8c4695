"""Checks of what an alias may name, and of what may not go while an alias names it; refusals are 400 and 404."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random

from stratos.common.errors import BadRequest, NotFound
from stratos.core.adapter import Adapter
from stratos.store.models.alias_forms import MIN_DIGITS, split_name
from stratos.store.models.alias_record import AliasRecord, AliasTarget
from stratos.store.models.model_record import ModelRecord
from stratos.store.models.rollout_record import RolloutRecord
from stratos.store.records.followed_snapshot import FollowedSnapshot
from stratos.store.records.record import Kind, value_as
from stratos_gateway.models.aliases import MAX_DEPTH, AliasChoice, AliasSource, aliases_of, revisions_of
from stratos_gateway.models.model_set import ModelSet

MAX_ALIASES = 1000


class StoredAliases(AliasSource):
    """Aliases as the store has them now."""

    def __init__(self, snapshot: FollowedSnapshot) -> None:
        self._found = aliases_of(snapshot)

    def find(self, name: str) -> AliasRecord | None:
        """The alias of a name; ``None`` where there is none."""
        return self._found.get(name)

    def list(self) -> Sequence[AliasRecord]:
        """All of them."""
        return list(self._found.values())


def choice_of(snapshot: FollowedSnapshot, models: ModelSet) -> AliasChoice:
    """Where requests go by the records of the store, and the workers of the last look."""
    return AliasChoice(StoredAliases(snapshot), models, Random())


def checked_alias(alias: AliasRecord, snapshot: FollowedSnapshot, models: ModelSet) -> AliasRecord:
    """The alias with whole digests.

    Raises:
        NotFound: a target is no model, no revision and no alias.
        BadRequest: its name is taken, a digest fits several revisions, aliases would lead back to it, or some alias
            would lead over too many names by it.
    """
    revisions, aliases = revisions_of(snapshot, models), aliases_of(snapshot)
    if alias.name not in aliases and len(aliases) >= MAX_ALIASES:
        raise BadRequest(f"there are {MAX_ALIASES} aliases already", param="name")
    targets = tuple(_whole(target, revisions, aliases) for target in alias.targets)
    if len({(target.model, target.digest) for target in targets}) < len(targets):
        raise BadRequest("two targets of an alias are the same revision", param="targets")
    if alias.name in revisions.values() and any(t.model != alias.name or not t.digest for t in targets):
        text = f"{alias.name!r} is a model: it is split among its own revisions alone, by their digests"
        raise BadRequest(text, param="targets")
    adapters = (record.value for record in snapshot.of_kind(Kind.ADAPTER))
    if any(isinstance(adapter, Adapter) and adapter.name == alias.name for adapter in adapters):
        raise BadRequest(f"an adapter has the name {alias.name!r}", param="name")
    found = replace(alias, targets=targets)
    _check_ways(found, aliases)
    return found


def _whole(target: AliasTarget, revisions: Mapping[str, str], aliases: Mapping[str, AliasRecord]) -> AliasTarget:
    """The target with a whole digest."""
    if not target.digest:
        if target.model not in aliases and target.model not in revisions.values():
            raise NotFound(f"there is no model and no alias {target.model[:64]!r}")
        return target
    if len(target.digest) < MIN_DIGITS:
        raise BadRequest(f"a digest has at least {MIN_DIGITS} digits", param="targets")
    fits = [d for d, name in revisions.items() if name == target.model and d.startswith(target.digest)]
    if not fits:
        raise NotFound(f"the model {target.model[:64]!r} has no revision {target.digest[:64]}")
    if len(fits) > 1:
        raise BadRequest(f"several revisions of {target.model!r} begin with {target.digest}", param="targets")
    return replace(target, digest=fits[0])


def _check_ways(alias: AliasRecord, aliases: Mapping[str, AliasRecord]) -> None:
    """Refuse a loop, and a way that is too long, from whichever alias it begins."""
    before = {name: _names(known) for name, known in aliases.items() if not known.is_split}
    ways = {name: before[name] for name in before if name != alias.name}
    ways |= {} if alias.is_split else {alias.name: _names(alias)}
    reached, new = set[str](), _names(alias)
    while new:
        reached |= new
        new = {name for one in new for name in ways.get(one, ())} - reached
    if alias.name in reached:
        raise BadRequest(f"the alias {alias.name!r} would lead back to itself", param="targets")
    if longer := _too_long(ways) - _too_long(before):
        text = f"aliases may lead over {MAX_DEPTH} names at most, and {min(longer)!r} would lead over more"
        raise BadRequest(text, param="targets")


def _names(alias: AliasRecord) -> set[str]:
    """Names that an alias leads to, which may be aliases themselves."""
    return {target.model for target in alias.targets if not target.digest}


def _too_long(ways: Mapping[str, set[str]]) -> set[str]:
    """Aliases that lead over more than ``MAX_DEPTH`` of them, those in a loop included."""
    found = set(ways)
    for _ in range(MAX_DEPTH):
        found = {name for name in found if ways[name] & found}
    return found


def check_not_rolling(name: str, snapshot: FollowedSnapshot) -> None:
    """Refuse to change by hand what a roll-out moves, until the weights of its end are written; ``BadRequest``."""
    rollout = value_as(RolloutRecord, snapshot.get(Kind.ROLLOUT, name))
    if rollout is None or not rollout.is_unfinished:
        return
    what = "abort it first" if rollout.is_active else "the weights of its end are not written yet, try again"
    raise BadRequest(f"a roll-out of {name!r} is {rollout.phase.value}: {what}", param="name")


def check_unnamed(name: str, digests: Collection[str], snapshot: FollowedSnapshot, models: ModelSet) -> None:
    """Refuse to remove revisions that an alias or a roll-out names, or whose workers still stand in for it.

    Args:
        name: of the model.
        digests: of the revisions.
        snapshot: all records.
        models: of this gateway.

    Raises:
        BadRequest: it is refused.
    """
    for record in snapshot.of_kind(Kind.ROLLOUT):
        rollout = value_as(RolloutRecord, record)
        if rollout is not None and not {rollout.old, rollout.new}.isdisjoint(digests):
            check_not_rolling(rollout.model, snapshot)
    choice = choice_of(snapshot, models)
    is_whole = not _remains(name, digests, snapshot, models)
    for alias in choice.source.list():
        for target in in_use(alias, choice):
            is_meant = target.digest in digests or (is_whole and not target.digest and target.model == name)
            if target.model == name and is_meant:
                text = f"the alias {alias.name!r} names it: change or remove the alias first"
                raise BadRequest(text, param="name")


def in_use(alias: AliasRecord, choice: AliasChoice) -> tuple[AliasTarget, ...]:
    """Targets of an alias, with those of before while they stand in for them."""
    return alias.targets if choice.has_workers(alias) else alias.targets + alias.before


def _remains(name: str, digests: Collection[str], snapshot: FollowedSnapshot, models: ModelSet) -> bool:
    """Whether something of a name is left once the records of some digests are gone."""
    if any(model.base.name == name and models.fixed(model.base.digest) for model in models.revisions):
        return True
    recorded = (record.value for record in snapshot.of_owner(Kind.MODEL, name).values())
    return any(isinstance(model, ModelRecord) and model.digest not in digests for model in recorded)


def names_of(aliases: Mapping[str, AliasRecord], name: str, digest: str) -> Iterator[tuple[str, int]]:
    """Aliases that name a revision by its digest, with their weights."""
    for alias in aliases.values():
        for target in alias.targets:
            if target.digest == digest and split_name(target.model)[0] == name:
                yield alias.name, target.weight
