"""Checks of a start, and the record that it becomes. Refusals are 400 and 404."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratos.common.errors import BadRequest, NotFound
from stratos.store.models.alias_forms import MIN_DIGITS, split_name
from stratos.store.models.alias_record import AliasRecord, Sticky
from stratos.store.models.rollout_forms import rollout_from_json
from stratos.store.models.rollout_record import RolloutRecord
from stratos.store.records.record import Record, value_as
from stratos_gateway.models.model_set import ModelSet
from stratos_gateway.rollouts.drift import pinned_ids

FIELDS = frozenset({"to", "steps", "hold_s", "gates", "min_requests", "sticky"})
_NEEDED = ("to", "steps", "hold_s", "gates")


def named_revision(model: str, body: Mapping[str, Any]) -> tuple[str, str]:
    """The name of a model's own, and the digits of the revision that a body names, if it names one."""
    digits = body.get("to")
    return split_name(model)[0], digits if isinstance(digits, str) and len(digits) >= MIN_DIGITS else ""


def planned(
    model: str, body: Mapping[str, Any], found: Record | None, models: ModelSet, by: str, now_us: int
) -> RolloutRecord:
    """The roll-out that a body asks for.

    Args:
        model: name whose requests go over: a model's own, or a tag of it.
        body: ``FIELDS``.
        found: the alias of that name; ``None`` where it has none.
        models: served by this gateway.
        by: who asks.
        now_us: by the store's clock.

    Raises:
        BadRequest: a field that cannot be, the model is split already, or drift cannot be measured.
        NotFound: there is no such model, or no such revision at this gateway.
    """
    if unknown := sorted(set(body) - FIELDS):
        raise BadRequest(f"{unknown[0][:64]!r} is no field of a roll-out", param=unknown[0][:64])
    if missing := [name for name in _NEEDED if name not in body]:
        raise BadRequest(f"a roll-out needs {missing[0]}", param=missing[0])
    alias = value_as(AliasRecord, found)
    base, tag = split_name(model)
    if (current := models.get(base)) is None:
        raise NotFound(f"there is no model {base[:64]!r}; adapters and aliases without @ are not rolled out")
    if tag and (alias is None or not all(target.digest for target in alias.targets)):
        raise BadRequest(f"let {model!r} stand for a revision first: `stratos models alias`", param="model")
    if alias is not None and len(alias.targets) > 1:
        text = f"{model!r} is split among {len(alias.targets)} revisions: let it stand for one of them first"
        raise BadRequest(text, param="model")
    old = current.base.digest if alias is None else alias.targets[0].digest
    given = {name: body[name] for name in FIELDS - {"to", "sticky"} if name in body}
    sticky = body.get("sticky", Sticky.SESSION if alias is None else alias.sticky)
    version = 0 if found is None else found.version
    facts = {"alias_version": version, "old": old, "new": _revision(base, body["to"], models), "sticky": sticky}
    made = rollout_from_json(model, given | facts | {"started_by": by, "started_us": now_us, "since_us": now_us})
    served = [served for served in map(models.of_digest, (made.old, made.new)) if served is not None]
    if made.gates.drift is not None and len(served) > 1:
        pinned_ids(*served)
    return made


def _revision(model: str, digits: object, models: ModelSet) -> str:
    """The whole digest that begins with some digits."""
    if not isinstance(digits, str) or len(digits) < MIN_DIGITS:
        raise BadRequest(f"name the revision by at least {MIN_DIGITS} digits of its digest", param="to")
    found = models.of_digits(model, digits)
    if not found:
        raise NotFound(f"this gateway serves no revision {digits[:64]} of {model!r}; `stratos models list` shows all")
    if len(found) > 1:
        raise BadRequest(f"several revisions of {model!r} begin with {digits}", param="to")
    return found[0].base.digest
