"""Engines over the fake runner with a disk tier in a folder of the test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stratos.common.clock import Clock
from stratos.core.requests.records import EngineRequest
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.kv_disk.block_seal import OVERHEAD_BYTES
from stratos.engine.settings import DiskTierConfig
from tests.support.worlds.engine_driver import Run, drain, make_request
from tests.support.worlds.engine_settings import scheduler_config

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
FILE_BYTES = 4 * 8 + OVERHEAD_BYTES
"""Of a block of 4 tokens."""


class DiskWorld:
    """Engines over one folder, one after the other."""

    def __init__(self, folder: Path, overlap: bool) -> None:
        self.folder, self._overlap = folder, overlap
        self.engine: EngineCore = None  # type: ignore[assignment]

    def start(self, clock: Clock | None = None, *, costs: bool = False, **changes: Any) -> EngineCore:
        """An engine, in place of the one before."""
        if self.engine is not None and self.engine.disk is not None:
            self.engine.disk.close()
        fake = {"num_blocks": 8, "block_size": 4, "num_host_blocks": 12, "overlap": self._overlap}
        disk = {"directory": self.folder, "max_bytes": 1000 * FILE_BYTES, "max_tenant_ratio": 1.0}
        for name, value in changes.items():
            (disk if name in DiskTierConfig.__dataclass_fields__ else fake)[name] = value
        config = scheduler_config(swap_costs=costs, kv_watermark=1.0)
        runner = FakeRunner(FakeConfig(**fake))  # type: ignore[arg-type]
        self.engine = EngineCore(runner, config, clock, disk=DiskTierConfig(**disk))  # type: ignore[arg-type]
        return self.engine

    def ask(self, prompt: list[int], name: str, *, tenant: str = "t", key: bytes = KEY) -> Run:
        """Load what disk has of a prompt, run it to its end, and write what has waited."""
        request = self.request(prompt, name, tenant=tenant, key=key)
        self.engine.load_blocks(request.prompt_ids, request.terms)
        self.engine.add(request)
        run = drain(self.engine)
        assert self.engine.disk is not None
        self.engine.disk.write()
        self.engine.verify()
        return run

    def request(self, prompt: list[int], name: str, *, tenant: str = "t", key: bytes = KEY) -> EngineRequest:
        """One choice of 3 tokens."""
        request = make_request(prompt, name, max_tokens=3)
        terms = replace(request.terms, tenant=tenant, kv_key=key, cache_salt=tenant.encode())
        return replace(request, terms=terms)

    @property
    def files(self) -> list[Path]:
        return sorted(self.folder.glob("*/*/*.kv"))


def prompt_of(kind: int, length: int = 21) -> list[int]:
    """Tokens of a prompt that shares nothing with those of other kinds."""
    return [100 * kind + i for i in range(length)]


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests lose no power."""
    monkeypatch.setattr(os, "fdatasync", lambda _: None)


@pytest.fixture
def world(tmp_path: Path, overlap: bool) -> Iterator[DiskWorld]:
    made = DiskWorld(tmp_path / "kv", overlap)
    yield made
    if made.engine is not None and made.engine.disk is not None:
        made.engine.disk.close()
