"""Terms of a model that is added: those that are not given are the ones that its name has already."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stratos.common.errors import BadRequest
from stratos.core.tenancy.plan import Plan
from stratos.store.models.forms import model_id, model_to_json
from stratos.store.models.model_record import ModelRecord
from stratos.store.records.followed_snapshot import FollowedSnapshot
from stratos.store.records.record import Kind
from stratos_gateway.models.model_set import ModelSet
from stratos_gateway.models.served_model import ServedModel

_OWN = ("text_digest", "source", "created_unix_s", "facts")
"""Fields that are no terms: each revision has its own."""
_EFFECTS: Mapping[str, Callable[[ServedModel], object]] = {
    "size": lambda model: model.base.size,
    "max_input_tokens": lambda model: model.max_input_tokens,
    "max_model_len": lambda model: model.base.max_model_len,
    "max_stream_len": lambda model: model.base.max_model_len,
    "default_max_tokens": lambda model: model.default_max_tokens,
    "quantization": lambda model: model.base.quantization,
    "pooling": lambda model: model.base.embedding,
    "matryoshka": lambda model: model.base.embedding,
}
"""What each term comes to at a gateway."""


def terms_of(name: str, digest: str, snapshot: FollowedSnapshot, models: ModelSet) -> dict[str, Any]:
    """Terms that a new revision has where no others are given, as JSON.

    A revision that is added again has its own; another one those of the newest revision of its name. Of a model that
    settings name these are its price row and the lengths of requests: its context and its weights are its own.
    """
    if (fixed := models.fixed(digest)) is not None:
        return _terms(fixed)
    recorded = [r for r in snapshot.of_kind(Kind.MODEL) if isinstance(r.value, ModelRecord) and r.value.name == name]
    newest = max(recorded, key=lambda r: (r.id == model_id(name, digest), r.version), default=None)
    if newest is not None and isinstance(newest.value, ModelRecord):
        return {field: value for field, value in model_to_json(newest.value).items() if field not in _OWN}
    served = models.get(name)
    return {} if served is None else _terms(served)


def _terms(served: ServedModel) -> dict[str, Any]:
    return {
        "size": served.base.size,
        "max_input_tokens": served.max_input_tokens,
        "default_max_tokens": served.default_max_tokens,
    }


def check_size(size: str, snapshot: FollowedSnapshot) -> None:
    """Refuse a price row that no plan has, where plans have prices; raises ``BadRequest``."""
    rows = {row for r in snapshot.of_kind(Kind.PLAN) if isinstance(r.value, Plan) for row in r.value.prices}
    if size and rows and size not in rows:
        known = ", ".join(sorted(rows))[:200]
        raise BadRequest(f"no plan has a row of prices for the size {size[:64]!r}; there are: {known}", param="size")


def check_same(model: ServedModel, fixed: ServedModel, given: Mapping[str, Any]) -> None:
    """Refuse terms of a model that settings name, where they say otherwise: settings win.

    Args:
        model: as it would be with the terms.
        fixed: as settings have it.
        given: fields that were asked for.

    Raises:
        BadRequest: ``param`` is the first such term.
    """
    if given.get("speculation") is not None:
        text = "settings name this model, and its workers draft as they were started"
        raise BadRequest(text, param="speculation")
    for field, effect in _EFFECTS.items():
        if field in given and effect(model) != effect(fixed):
            raise BadRequest(f"settings of the gateways name this model, with another {field}", param=field)
