"""Engines over the fake runner with a disk tier in a folder of the test."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stratos.common.clock import Clock
from stratos.core.block_hash import block_hashes, chain_root
from stratos.core.cache_changes import short_hashes
from stratos.core.requests.records import EngineRequest
from stratos.engine.contract.results import DiskTierStatus
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.kv_disk.block_seal import OVERHEAD_BYTES
from stratos.engine.settings import DiskTierConfig
from tests.support.worlds.engine_driver import Run, assert_at_rest, drain, expected, make_request
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
        config = scheduler_config(swap_costs=costs, kv_watermark=1.0, max_cache_changes=1000)
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

    def fill(self, kinds: Iterable[int] = range(1, 6), **terms: Any) -> None:
        """Prompts of 5 full blocks each, over a device of 8 blocks."""
        for kind in kinds:
            self.ask(prompt_of(kind), f"fill{kind}", **terms)

    def ask_again(self, kind: int = 1, **terms: Any) -> int:
        """Cached tokens of a prompt that was there before; its output must be right in any case."""
        run = self.ask(prompt_of(kind), f"again{kind}", **terms)
        assert run.tokens == {(f"again{kind}", 0): expected(prompt_of(kind), 3)}
        assert_at_rest(self.engine)
        return int(run.stats[f"again{kind}"].num_cached_tokens)

    def hashes(self, kind: int) -> list[bytes]:
        """Of the full blocks of a prompt."""
        request = self.request(prompt_of(kind), "any")
        root = chain_root(self.engine.info.identity, "", request.terms.cache_salt)
        return block_hashes(root, request.prompt_ids[:-1], self.engine.info.geometry.block_size)

    def names(self, kind: int) -> tuple[int, ...]:
        """The same as routers know them."""
        return short_hashes(self.hashes(kind))

    def depth(self, kind: int = 1) -> int:
        """Blocks of a prompt, from the first on, that lie on disk; with overlap some are not copied in time."""
        disk = self.engine.disk
        assert disk is not None
        found = len(list(itertools.takewhile(disk.index.__contains__, self.hashes(kind))))
        assert found >= 2
        return found

    def reconcile(self) -> DiskTierStatus:
        """Files are what the ledger says, block by block and byte by byte."""
        status = self.engine.status().disk
        status.check_laws()
        assert len(self.files) == status.blocks.stored
        assert {path.stat().st_size for path in self.files} <= {status.block_bytes}
        assert not list(self.folder.rglob("*.new"))
        return status

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
