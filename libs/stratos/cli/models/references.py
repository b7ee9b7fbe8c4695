"""Models of the registry on this machine: what a reference means, and the cache in the data directory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

from stratos.cli.data.folder import DataDir
from stratos.cli.local.options import UpOptions
from stratos.store.object_store import ObjectStore
from stratos.store.registry.catalogue import (
    ModelReference,
    PublishedModel,
    find_published,
    is_reference,
    parse_reference,
)
from stratos.store.registry.fetching import FetchWork, for_transfers
from stratos.store.registry.node_cache import CachedModel, NodeCache
from stratos.store.settings import ObjectStoreConfig
from stratos.store.urls import opened_store


def _opened(config: ObjectStoreConfig) -> AbstractAsyncContextManager[ObjectStore]:
    return opened_store(for_transfers(config))


def found_model(reference: str, config: ObjectStoreConfig) -> PublishedModel:
    """The published revision that a reference means.

    Raises:
        StratosError: it is not published, its manifest was altered, or the store does not answer.
    """

    async def find() -> PublishedModel:
        async with _opened(config) as store:
            return await find_published(store, parse_reference(reference))

    return asyncio.run(find())


def pulled_model(reference: str, config: ObjectStoreConfig, cache: NodeCache) -> tuple[Path, int]:
    """Bring a model into a cache and leave it there; returns its folder, and bytes that came from the store.

    Raises:
        StratosError: as ``held_model``.
    """

    async def pull() -> tuple[Path, int]:
        work = FetchWork()
        async with _opened(config) as store:
            published = await find_published(store, parse_reference(reference))
            async with cache.model(store, published.manifest, work) as model:
                return model.path, work.num_fetched_bytes

    return asyncio.run(pull())


async def held_model(reference: str, config: ObjectStoreConfig, data: DataDir) -> CachedModel:
    """A model of the registry in the cache of this machine, held until it is closed.

    Raises:
        StratosError: as ``found_model``, or it cannot be fetched.
    """
    async with _opened(config) as store:
        return await NodeCache(data.models_path).hold_reference(store, parse_reference(reference))


def with_held_models(options: UpOptions, say: Callable[[str], None]) -> tuple[UpOptions, list[CachedModel]]:
    """The options with folders in place of references, and what is held for as long as the platform runs.

    Raises:
        StratosError: as ``held_model``.
    """
    held: list[CachedModel] = []
    more = []
    for one in options.more_models:
        found, models = with_held_models(one, say)
        more.append(found)
        held += models
    options = replace(options, more_models=tuple(more))
    text = str(options.model_path)
    if not is_reference(text):
        return options, held
    data = DataDir(options.data_dir)
    data.prepare()
    url = options.object_store_url or f"file://{data.store_path}"
    config = ObjectStoreConfig(url=url, s3_endpoint_url=options.s3_endpoint_url)
    say(f"fetching {text}, unless it is here")
    model = asyncio.run(held_model(text, config, data))
    source = str(ModelReference(parse_reference(text).name, model.manifest.digest))
    return replace(options, model_path=model.path, source=source), [*held, model]
