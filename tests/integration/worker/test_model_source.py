"""A worker whose settings name a model of the registry: fetched, checked, told in metrics, held while it lives."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from stratos.common.clock import FakeClock
from stratos.common.errors import BadRequest, NotFound, StratosError
from stratos.core.placement import WorkerRole
from stratos.rpc.binding import StartError
from stratos.store.local_store import LocalStore
from stratos.store.registry.catalogue import PublishedModel
from stratos.worker.model_source import ModelSource
from tests.support.reference.published_models import DRAFT, published
from tests.support.worlds.worker_world import make_settings, open_world


@pytest.fixture
async def made(tmp_path: Path) -> PublishedModel:
    (tmp_path / "objects").mkdir()
    return await published(LocalStore(tmp_path / "objects"))


def overrides(tmp_path: Path, source: str) -> dict[str, Any]:
    return {
        "object_store": {"url": f"file://{tmp_path / 'objects'}"},
        "model": {"source": source, "cache_directory": tmp_path / "cache", "patience_s": 0},
    }


async def test_workers_say_the_digest_that_was_published_and_the_second_finds_it_in_the_cache(
    made: PublishedModel, tmp_path: Path
) -> None:
    size = made.manifest.num_bytes
    async with open_world(tmp_path) as world:
        for role, came in ((WorkerRole.PREFILL, size), (WorkerRole.DECODE, 0)):
            worker = await world.start(role, **overrides(tmp_path, made.reference))
            assert worker.process.status().identity.model_digest == made.manifest.digest
            assert worker.metric("stratos_model_fetched_bytes_total") == came
            assert worker.metric("stratos_model_cached_bytes") == size - came
            assert worker.metric("stratos_model_load_seconds", stage="load") > 0
            shutil.rmtree(tmp_path / "objects", ignore_errors=True)  # the second one starts without the store
        info = worker.process.metrics.get_sample_value
        labels = {"worker": "decode-0", "role": "decode", "model": "draft", "device": "cpu"}
        assert info("stratos_worker_info", {**labels, "model_digest": made.manifest.digest}) == 1


@pytest.mark.parametrize(
    ("source", "store", "error", "message"),
    [
        ("registry:none", True, NotFound, "is not published"),
        (str(DRAFT), True, BadRequest, "is no reference"),
        ("registry:draft", False, StartError, "needs OBJECT_STORE__URL"),
    ],
)
async def test_a_source_that_cannot_be_is_said(
    made: PublishedModel, tmp_path: Path, source: str, store: bool, error: type[StratosError], message: str
) -> None:
    asked = overrides(tmp_path, source)
    if not store:
        del asked["object_store"]
    settings = make_settings(WorkerRole.DECODE, tmp_path, **asked)
    with pytest.raises(error, match=message):
        await ModelSource(settings, FakeClock(), CollectorRegistry()).open()
