"""Workers of added models on one machine: each is planned beside those that are there, one after the other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stratos.cli.local.options import UpOptions
from stratos.cli.models.workers import LocalModelWorkers, fitted
from stratos.core.files.model_files import read_model_files
from stratos.store.models.model_record import ModelRecord
from tests.support.paths import MODELS

DRAFT = MODELS / "draft"


@dataclass
class Platform:
    """Notes for how many workers each start was planned, and how many starts there were at once."""

    planned: list[int] = field(default_factory=list)
    num_now: int = 0
    most: int = 0

    async def launch_workers(self, label: str, of: UpOptions, digest: str) -> list[str]:
        self.num_now += 1
        self.most = max(self.most, self.num_now)
        await asyncio.sleep(0)
        self.num_now -= 1
        self.planned.append(of.num_workers)
        return [f"prefill-{label}", f"decode-{label}"]

    async def begin_drain(self, name: str) -> None:
        """Let it go."""


async def test_models_start_one_after_the_other_and_share_with_those_that_have_workers(tmp_path: Path) -> None:
    platform: Any = Platform()
    options, data = UpOptions(model_path=DRAFT, engine="fake"), SimpleNamespace(digests_file=tmp_path / "digests")
    workers = LocalModelWorkers(platform, options, SimpleNamespace(), data)  # type: ignore[arg-type]
    digest = read_model_files(DRAFT).digest
    records = [ModelRecord(name=n, digest=digest, text_digest="", source=str(DRAFT)) for n in ("a", "b", "c")]
    started = await asyncio.gather(*map(workers.start_model, records[:2]))
    assert (platform.most, platform.planned) == (1, [4, 6])
    for name in started[0]:
        await workers.begin_drain(name)
    await workers.start_model(records[2])
    assert platform.planned == [4, 6, 6]


def test_another_model_gets_the_type_that_was_asked_for() -> None:
    first, _ = fitted(UpOptions(model_path=DRAFT, dtype="auto"))
    assert first.dtype != "auto"
    assert first.asked_dtype == "auto"
    again, _ = fitted(replace(first, dtype="bfloat16" if first.dtype == "float32" else "float32"))
    assert (again.dtype, again.asked_dtype) == (first.dtype, "auto")
