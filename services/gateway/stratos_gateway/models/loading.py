"""Reads the folders of base models, each in a thread, a few at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from stratos_gateway.models.model_set import ModelSet
from stratos_gateway.models.served_model import ServedModel
from stratos_gateway.models.settings import ModelConfig

MAX_AT_ONCE = 4
"""Folders that are read at once: each may be hashed, which a disk and a core are busy with."""


async def load_models(configs: Sequence[ModelConfig]) -> ModelSet:
    """Read all folders; the first one is the home.

    Raises:
        InvalidCheckpoint: one cannot be served, or two are one; the message says what to do.
    """
    places = asyncio.Semaphore(MAX_AT_ONCE)

    async def load(config: ModelConfig) -> ServedModel:
        async with places:
            return await asyncio.to_thread(ServedModel.load, config)

    return ModelSet(await asyncio.gather(*map(load, configs)))
