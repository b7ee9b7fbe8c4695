"""Takes published revisions out of the registry, where nothing of the platform refers to them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from stratos.common.errors import BadRequest
from stratos.store.registry.catalogue import PublishedModel, find_published, is_reference, parse_reference
from stratos.store.registry.retiring import Swept, sweep, unpublish
from stratos.store.settings import ObjectStoreConfig
from stratos.store.urls import opened_store

NUM_ATTEMPTS = 5


def unpublish_model(
    reference: str, config: ObjectStoreConfig, rows: Iterable[Mapping[str, Any]] | None
) -> PublishedModel:
    """Take a revision out.

    Args:
        reference: of it, with digits.
        config: of the object store.
        rows: models as the platform serves them; ``None`` where there is no platform to ask.

    Raises:
        BadRequest: a model of the platform is served from it.
        StratosError: it is not published, or the store does not answer.
    """

    async def work() -> PublishedModel:
        parsed = parse_reference(reference, "reference")
        async with opened_store(config, num_attempts=NUM_ATTEMPTS) as store:
            if parsed.digits:
                check_unused(await find_published(store, parsed), rows or ())
            return await unpublish(store, parsed)

    return asyncio.run(work())


def check_unused(found: PublishedModel, rows: Iterable[Mapping[str, Any]]) -> None:
    """Refuse a revision that is served: aliases and roll-outs keep the records that they refer to."""
    for row in rows:
        source = str(row.get("source", ""))
        is_elsewhere = source != "" and not (is_reference(source) and parse_reference(source).name == found.name)
        if row["digest"] == found.manifest.digest and not is_elsewhere:
            raise BadRequest(
                f"{found.reference} is served as {row['name']!r}; "
                f"`stratos models remove {row['name']} --digest {found.manifest.digest[:12]}` comes first",
                param="reference",
            )


def sweep_registry(config: ObjectStoreConfig, min_age_s: float, *, deletes: bool) -> Swept:
    """Delete chunks that nothing refers to; raises ``StratosError``."""

    async def work() -> Swept:
        async with opened_store(config, num_attempts=NUM_ATTEMPTS) as store:
            return await sweep(store, min_age_s=min_age_s, deletes=deletes)

    return asyncio.run(work())
