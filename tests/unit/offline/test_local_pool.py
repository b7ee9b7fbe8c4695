"""The pool of local processes where they end at bad moments; its processes are scripts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stratos_offline.blocks import BlockTask
from stratos_offline.options import EngineAsk, LineIdentity
from stratos_offline.pools.local import LocalPool
from tests.support.worlds.offline_job import job_options

TASK = BlockTask(key="k", num_lines=1, begin=0)
LEAVES_ONCE = """#!/bin/sh
read first
if [ ! -e {marker} ]; then : > {marker}; exec 0<&-; echo '{{"ready": true}}'; exec sleep 60; fi
echo '{{"ready": true}}'
read task
echo '{{"key": "k", "num_lines": 1, "num_failed": 0, "was_there": false}}'
read more
"""


@pytest.fixture
def pool(tmp_path: Path) -> LocalPool:
    options = job_options(tmp_path / "in.jsonl", tmp_path / "out")
    identity = LineIdentity(name="batch_1", created_unix_s=1)
    return LocalPool(EngineAsk(engine=options.engine, identity=identity, store=options.store("j" * 40)), "/v1", 1)


@pytest.mark.timeout(20)
def test_a_process_that_reads_no_more_is_replaced(
    pool: LocalPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it did not read is still in a buffer when its pipe is closed."""
    script = tmp_path / "engine"
    script.write_text(LEAVES_ONCE.format(marker=tmp_path / "marker"))
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    assert [report.num_lines for report in pool.run([TASK])] == [1]
    assert (tmp_path / "marker").exists()
    assert pool.processes == {}


@pytest.mark.timeout(20)
def test_a_machine_that_starts_no_process_ends_the_job(
    pool: LocalPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    with pytest.raises(FileNotFoundError):
        list(pool.run([TASK]))
