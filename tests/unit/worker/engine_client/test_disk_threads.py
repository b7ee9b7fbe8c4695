"""Threads of the disk tier end before the directory belongs to another process."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.kv_disk.block_folder import BlockFolder, tenant_folder
from stratos.engine.kv_disk.block_seal import OVERHEAD_BYTES, layout_digest
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
    assert (outcomes.count("closed"), outcomes[-1]) == (1, "closed")


HASHES = [bytes([number]) * 32 for number in range(3)]


def left(folder: Path) -> list[bytes]:
    """Blocks of which there is a file."""
    return sorted(bytes.fromhex(path.stem) for path in folder.glob("*/*/*.kv"))


async def engine_over(folder: Path) -> tuple[ThreadEngine, EngineCore]:
    """An engine that runs, and found a file of each of ``HASHES``."""
    config, runner = DiskTierConfig(directory=folder, max_bytes=1 << 20), FakeRunner(FakeConfig(num_host_blocks=4))
    geometry = runner.info.geometry
    block_bytes = geometry.token_bytes * geometry.block_size + OVERHEAD_BYTES
    files = BlockFolder(folder, layout_digest(runner.info), block_bytes)
    for block_hash in HASHES:
        files.write(block_hash, tenant_folder("t"), bytes(block_bytes))
    files.close()
    core = EngineCore(runner, scheduler_config(), disk=config)
    client = ThreadEngine(core)
    await client.start()
    assert left(folder) == HASHES
    return client, core


async def test_what_was_said_to_be_forgotten_has_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer comes when the files are gone, so a crash just after it brings nothing back."""
    remove = BlockFolder.remove
    monkeypatch.setattr(BlockFolder, "remove", lambda *file: time.sleep(0.05) or remove(*file))
    client, _ = await engine_over(tmp_path)
    assert await client.forget_blocks(HASHES[:2]) == 2
    assert left(tmp_path) == HASHES[2:]
    assert await client.forget_tenant("t") == 1
    assert left(tmp_path) == []
    assert await client.forget_blocks(HASHES) == 0
    await client.close()


async def test_what_was_forgotten_at_the_end_has_no_file_either(tmp_path: Path) -> None:
    client, core = await engine_over(tmp_path)
    core.forget_blocks(HASHES[1:])  # between steps, so that nothing wakes the writer
    await client.close()
    assert left(tmp_path) == HASHES[:1]


async def test_what_is_forgotten_as_a_write_ends_has_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer has looked for the last time, and is not done yet, when the engine closes."""
    client, core = await engine_over(tmp_path)
    looked, ending, writers = threading.Event(), threading.Event(), []
    write, submit, shutdown = DiskTier.write, ThreadPoolExecutor.submit, ThreadPoolExecutor.shutdown

    def write_slowly(tier: DiskTier) -> None:
        write(tier)
        if not looked.is_set():
            looked.set()
            assert ending.wait(10)

    def submit_and_note(pool: ThreadPoolExecutor, function: Callable[..., object], *args: object) -> object:
        if getattr(function, "__func__", None) is write_slowly:
            writers.append(pool)
        return submit(pool, function, *args)

    def shutdown_and_say(pool: ThreadPoolExecutor, *, wait: bool) -> None:
        if pool in writers:
            ending.set()
        shutdown(pool, wait=wait)

    monkeypatch.setattr(DiskTier, "write", write_slowly)
    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit_and_note)
    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", shutdown_and_say)
    assert await client.forget_blocks([bytes(range(32))]) == 0
    assert await asyncio.to_thread(looked.wait, 10)
    core.forget_blocks(HASHES[1:])
    await client.close()
    assert left(tmp_path) == HASHES[:1]


async def test_the_answer_waits_for_the_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss of power may undo what was not synchronised: folders are, after their files went and before the answer."""
    events: list[str] = []
    unlink, fsync, rmtree = Path.unlink, os.fsync, shutil.rmtree

    def noted(name: str, function: Callable[..., object]) -> Callable[..., object]:
        return lambda *args, **named: (events.append(name), function(*args, **named))[1]

    client, _ = await engine_over(tmp_path)
    monkeypatch.setattr(Path, "unlink", noted("unlink", unlink))
    monkeypatch.setattr(os, "fsync", noted("fsync", fsync))
    monkeypatch.setattr(shutil, "rmtree", noted("rmtree", rmtree))
    await client.forget_blocks(HASHES[:2])
    events.append("answer")
    await client.forget_tenant("t")
    events.append("answer")
    await client.close()
    assert events[:6] == ["unlink", "unlink", "fsync", "answer", "rmtree", "fsync"]


async def test_a_file_that_cannot_be_removed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client, _ = await engine_over(tmp_path)

    def refuse(path: Path) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        assert await client.forget_blocks(HASHES[:1]) == 1
    assert "cannot be removed, and a restart finds it" in caplog.text
    assert HASHES[0].hex() in caplog.text
    await client.close()


async def test_a_disk_that_hangs_does_not_hold_up_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    monkeypatch.setattr(BlockFolder, "remove", lambda *_: gate.wait(30))
    client, core = await engine_over(tmp_path)
    assert core.disk is not None
    core.disk.patience_s = 0.05
    assert await asyncio.wait_for(client.forget_blocks(HASHES), 20) == 3
    assert not gate.is_set()
    gate.set()
    await client.close()
