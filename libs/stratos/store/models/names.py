"""The rule which name and which digest a base model can have, beside the other models, adapters and aliases."""

from __future__ import annotations

from collections.abc import Iterable

from stratos.common.errors import BadRequest
from stratos.core.adapter import Adapter
from stratos.store.models.alias_record import AliasRecord


def check_model_place(name: str, same: Iterable[str], known: Iterable[object]) -> None:
    """Refuse a model whose digest has another name, or whose name an adapter, or an alias of other models, has.

    Args:
        name: of the model.
        same: names that its digest has already.
        known: values of records; those that are no adapter and no alias say nothing.

    Raises:
        BadRequest: ``param`` says whether the name or the digest is in the way.
    """
    if taken := set(same) - {name}:
        raise BadRequest(f"this model is served or recorded as {min(taken)!r} already", param="digest")
    for value in known:
        if isinstance(value, Adapter) and value.name == name:
            raise BadRequest(f"an adapter has the name {name!r}", param="name")
        if isinstance(value, AliasRecord) and value.name == name and any(t.model != name for t in value.targets):
            raise BadRequest(f"an alias has the name {name!r}", param="name")
