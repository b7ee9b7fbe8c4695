"""Workers of added models on one machine: each is planned beside those that are there, one after the other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stratos.cli.data.folder import DataDir
from stratos.cli.data.speculative_config import parse_speculative_config
from stratos.cli.local.options import UpOptions
from stratos.cli.models import workers
from stratos.cli.models.workers import LocalModelWorkers, fitted
from stratos.common.errors import BadRequest, InvalidCheckpoint
from stratos.core.files.model_files import read_model_files
from stratos.engine.settings import DiskTierConfig, SpeculationConfig
from stratos.selfcheck.machine.sizing import WorkerAsk, plan_workers, worker_settings
from stratos.store.local_store import LocalStore
from stratos.store.models.model_record import ModelRecord, ModelSpeculation
from tests.support.paths import MODELS
from tests.support.reference.published_models import published

DRAFT = MODELS / "draft"
HEAD = "SCHEDULER__SPECULATION__"


@dataclass
class Platform:
    """Notes for how many workers each start was planned, with which pool, and how many starts there were at once."""

    planned: list[int] = field(default_factory=list)
    pools: set[int] = field(default_factory=set)
    given: list[UpOptions] = field(default_factory=list)
    num_now: int = 0
    most: int = 0

    async def launch_workers(self, label: str, of: UpOptions, digest: str) -> list[str]:
        self.num_now += 1
        self.most = max(self.most, self.num_now)
        await asyncio.sleep(0)
        self.num_now -= 1
        self.planned.append(of.num_workers)
        self.given.append(of)
        self.pools.add(of.kv_pool_bytes)
        return [f"prefill-{label}", f"decode-{label}"]

    async def begin_drain(self, name: str) -> None:
        """Let it go."""


async def test_models_start_one_after_the_other_and_share_with_those_that_have_workers(tmp_path: Path) -> None:
    platform: Any = Platform()
    options = UpOptions(model_path=DRAFT, engine="fake", kv_pool_bytes=1)
    data = SimpleNamespace(digests_file=tmp_path / "digests")
    workers = LocalModelWorkers(platform, options, SimpleNamespace(), data)  # type: ignore[arg-type]
    digest = read_model_files(DRAFT).digest
    records = [ModelRecord(name=n, digest=digest, text_digest="", source=str(DRAFT)) for n in ("a", "b", "c")]
    started = await asyncio.gather(*map(workers.start_model, records[:2]))
    assert (platform.most, platform.planned) == (1, [4, 6])
    for name in started[0]:
        await workers.begin_drain(name)
    await workers.start_model(records[2])
    assert platform.planned == [4, 6, 6]
    assert platform.pools == {0}  # another model's pool is planned anew


async def test_a_model_drafts_as_its_record_says_else_as_the_platform_was_started(tmp_path: Path) -> None:
    platform: Any = Platform()
    options = UpOptions(model_path=DRAFT, engine="fake", kv_pool_bytes=1, speculative_config='{"method": "suffix"}')
    data = SimpleNamespace(digests_file=tmp_path / "digests")
    workers = LocalModelWorkers(platform, options, SimpleNamespace(), data)  # type: ignore[arg-type]
    record = ModelRecord(name="a", digest=read_model_files(DRAFT).digest, text_digest="", source=str(DRAFT))
    of_own = ModelSpeculation(method="draft", model=str(MODELS / "base"), num_speculative_tokens=3)
    await workers.start_model(record)
    await workers.start_model(replace(record, speculation=of_own))
    assert [parse_speculative_config(given.speculative_config) for given in platform.given] == [
        {f"{HEAD}METHOD": "suffix"},
        {f"{HEAD}METHOD": "draft", f"{HEAD}MODEL_PATH": str(MODELS / "base"), f"{HEAD}NUM_SPECULATIVE_TOKENS": "3"},
    ]
    gone = replace(of_own, model="/no/such")
    with pytest.raises(BadRequest, match='the folder of a draft model, not "/no/such"'):
        await workers.start_model(replace(record, speculation=gone))


async def test_the_draft_model_of_a_record_is_planned_beside_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts: list[SpeculationConfig] = []

    def planned(ask: WorkerAsk, machine: Any, flags: Any) -> Any:
        drafts.append(worker_settings(ask, flags).scheduler.speculation)
        return plan_workers(ask, machine, flags)

    monkeypatch.setattr(workers, "plan_workers", planned)
    folder, own = MODELS / "base", ModelSpeculation(method="draft", model=str(DRAFT))
    record = ModelRecord(
        name="a", digest=read_model_files(folder).digest, text_digest="", source=str(folder), speculation=own
    )
    data: Any = SimpleNamespace(digests_file=tmp_path / "digests")
    facts: Any = SimpleNamespace()
    await LocalModelWorkers(Platform(), UpOptions(model_path=DRAFT), facts, data).start_model(record)  # type: ignore[arg-type]
    assert [(planned.method, planned.model_path) for planned in drafts] == [("draft", DRAFT)]


async def test_a_published_model_is_fetched_into_the_cache_from_which_its_workers_have_it(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    made = await published(LocalStore(tmp_path / "objects"))
    platform: Any = Platform()
    facts = SimpleNamespace(object_store_url=f"file://{tmp_path / 'objects'}", s3_endpoint_url="")
    options = UpOptions(model_path=DRAFT, engine="fake", kv_pool_bytes=1)
    workers = LocalModelWorkers(platform, options, facts, DataDir(tmp_path / "data"))  # type: ignore[arg-type]
    digest = made.manifest.digest
    record = ModelRecord(name="draft", digest=digest, text_digest="", source=made.reference)
    await workers.start_model(record)
    [given] = platform.given
    assert (given.source, given.model_path.parent) == (made.reference, tmp_path / "data" / "models")
    with pytest.raises(InvalidCheckpoint, match="holds another model than its record says"):
        await workers.start_model(replace(record, digest="d" * 64))


def test_another_model_gets_the_type_that_was_asked_for() -> None:
    first, _ = fitted(UpOptions(model_path=DRAFT, dtype="auto"))
    assert first.dtype != "auto"
    assert first.asked_dtype == "auto"
    again, _ = fitted(replace(first, dtype="bfloat16" if first.dtype == "float32" else "float32"))
    assert (again.dtype, again.asked_dtype) == (first.dtype, "auto")


def test_host_memory_of_kv_is_in_the_plan_of_every_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    asks: list[WorkerAsk] = []
    monkeypatch.setattr(workers, "plan_workers", lambda ask, *more: asks.append(ask) or plan_workers(ask, *more))
    staging, texts = DiskTierConfig().staging_bytes, []
    for changes in ({}, {"kv_disk_gib": 1}, {"kv_host": "1"}, {"kv_host": "1", "kv_disk_gib": 1}, {"kv_host": "off"}):
        options = UpOptions(model_path=DRAFT, prefill=1, decode=1, max_decode=3, **changes)
        texts.append(fitted(options)[1])
    assert [worker_settings(ask, {}).runner.host_pool_bytes for ask in asks] == [0, staging, 1 << 30, 1 << 30, 0]
    assert {ask.num_workers for ask in asks} == {4}, "those that the autoscaler adds count"
    lines = [next(line for line in text.splitlines() if "host tier" in line) for text in texts]
    assert [line.split()[2] for line in lines] == ["off", "256.0", "1.0", "1.0", "off"]
