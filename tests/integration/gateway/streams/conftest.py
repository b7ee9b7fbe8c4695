"""Fixtures of tests with two gateways; each file makes its ``worlds``."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.fakes.scripted_embedder import ScriptedEmbedder
from tests.support.worlds.admin_world import AdminWorld


@pytest.fixture
async def embedder(worlds: list[AdminWorld]) -> AsyncIterator[ScriptedEmbedder]:
    """A worker for inputs to embed, which both know."""
    made = ScriptedEmbedder("prefill-0")
    await made.start()
    for world in worlds:
        world.router.embedders = [made.ref]
    yield made
    await made.stop()
