"""Engines in processes of this machine: one is killed and replaced; one that cannot start ends the job."""

from __future__ import annotations

import os
from pathlib import Path
from subprocess import Popen

import pytest

from stratos.common.errors import BadRequest
from stratos_offline.job import Job, JobProgress
from stratos_offline.options import EngineAsk
from stratos_offline.pools.local import LocalPool
from tests.support.worlds.offline_job import CREATED_UNIX_S, job_options, rows_of, write_lines

NUM_LINES = 30


def test_a_killed_process_is_replaced_and_each_line_is_there_once(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "in.jsonl", [f"line {number}" for number in range(NUM_LINES)])
    pools: list[LocalPool] = []
    killed: list[Popen[str]] = []
    groups: list[int] = []

    def make(ask: EngineAsk, endpoint: str) -> LocalPool:
        pools.append(LocalPool(ask, endpoint, 1))
        return pools[0]

    def kill_once(progress: JobProgress) -> None:
        if progress.num_done and not killed:
            killed.append(pools[0].processes[0])
            groups.append(os.getpgid(killed[0].pid))
            killed[0].kill()

    options = job_options(file, tmp_path / "out", block_lines=3)
    progress = Job(options, make, CREATED_UNIX_S, kill_once).run()
    assert killed[0].wait() == -9
    assert groups == [killed[0].pid], "Ctrl-C in a terminal is for the driver alone"
    assert (progress.num_done, progress.num_failed) == (NUM_LINES, 0)
    rows = rows_of(tmp_path / "out" / "output.jsonl")
    assert [row["custom_id"] for row in rows] == [f"c{number}" for number in range(NUM_LINES)]


def test_an_engine_that_cannot_start_ends_the_job(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "in.jsonl", ["go"])
    options = job_options(file, tmp_path / "out", engine={"engine": "fake", "dtype": "float17"})
    with pytest.raises(BadRequest, match=r"runner\.dtype: Input should be 'auto'"):
        Job(options, lambda ask, url: LocalPool(ask, url, 1), CREATED_UNIX_S).run()
