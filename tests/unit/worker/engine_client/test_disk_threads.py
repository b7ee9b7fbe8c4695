"""Threads of the disk tier end before the directory belongs to another process."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.kv_disk.block_folder import BlockFolder
from stratos.engine.kv_disk.disk_tier import DiskTier
from stratos.engine.settings import DiskTierConfig
from stratos.worker.engine_client.thread import ThreadEngine
from tests.support.worlds.engine_settings import scheduler_config


async def test_a_write_under_way_ends_before_the_directory_is_let_go_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, stopping, outcomes = threading.Event(), threading.Event(), []
    close, stop = DiskTier.close, DiskTier.stop

    def write(_: DiskTier) -> None:
        begun.set()
        assert stopping.wait(10)
        with pytest.raises(InvalidCheckpoint, match="another process"):
            BlockFolder(tmp_path, bytes(32), 1)
        outcomes.append("held")

    def close_and_say(disk: DiskTier) -> None:
        close(disk)
        outcomes.append("closed")
        stopping.set()

    def stop_and_say(disk: DiskTier) -> None:
        stop(disk)
        stopping.set()

    monkeypatch.setattr(DiskTier, "write", write)
    monkeypatch.setattr(DiskTier, "close", close_and_say)
    monkeypatch.setattr(DiskTier, "stop", stop_and_say)
    disk = DiskTierConfig(directory=tmp_path, max_bytes=1 << 20)
    client = ThreadEngine(EngineCore(FakeRunner(FakeConfig(num_host_blocks=4)), scheduler_config(), disk=disk))
    await client.start()
    assert await client.forget_tenant("t") == 0  # the writer is told to remove its files
    assert begun.wait(10)
    await client.close()
    assert outcomes == ["held", "closed"]
