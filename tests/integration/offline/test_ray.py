"""Blocks on a Ray cluster of three nodes on this machine: equal results, killed actors, drivers and nodes; tokens.

`make test-ray` installs Ray and runs it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest

from stratos_offline.cluster.connection import open_pool
from stratos_offline.job import Job, JobProgress
from stratos_offline.options import JobOptions
from stratos_offline.pools.local import LocalPool
from tests.support.waiting import wait_until
from tests.support.worlds.offline_job import CREATED_UNIX_S, job_options, rows_of, write_lines

pytestmark = [pytest.mark.ray, pytest.mark.timeout(580), pytest.mark.filterwarnings("ignore")]
TOKEN = "5" * 64
NUM_LINES, BLOCK_LINES = 240, 10
FAKE = {"engine": "fake", "lines_at_once": 4}


def add_node(cluster: Any, num_cpus: int) -> None:
    """Start one; on a busy machine a start may take longer than Ray's half a minute, and is begun again."""
    for place in range(4):
        before = set(psutil.Process().children(recursive=True))
        try:
            cluster.add_node(num_cpus=num_cpus, object_store_memory=100 << 20, include_dashboard=False)
        except Exception:
            for process in set(psutil.Process().children(recursive=True)) - before:
                with suppress(psutil.Error):
                    process.kill()
            if place == 3:
                raise
        else:
            return


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without cores, and two nodes with one each."""
    os.environ |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": TOKEN,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_agent_register_timeout_ms": "120000",
        "RAY_health_check_failure_threshold": "20",  # a busy machine is no lost node
    }
    pytest.importorskip("ray", reason="make test-ray installs it")
    import ray
    from ray.cluster_utils import Cluster

    found = Cluster()
    for num_cpus in (0, 1, 1):
        add_node(found, num_cpus)
    yield found
    ray.shutdown()
    found.shutdown()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    prompts = [f"book {number % 7} " * 30 + f"line {number}" for number in range(NUM_LINES)]
    return write_lines(tmp_path / "in.jsonl", prompts, max_tokens=24, ignore_eos=True)


def options_of(cluster: Any, file: Path, out: Path, **changes: Any) -> JobOptions:
    most = {"max_engines": 2, "min_engines": 1, "block_lines": BLOCK_LINES, "ray": cluster.address, "engine": FAKE}
    return job_options(file, out, **{**most, **changes})


def run_job(options: JobOptions, show: Callable[[JobProgress], None] = lambda progress: None) -> JobProgress:
    make = partial(open_pool, options=options) if options.ray else partial(LocalPool, num_engines=1)
    return Job(options, make, CREATED_UNIX_S, show).run()


def command_of(options: JobOptions) -> list[str]:
    """A driver of its own."""
    own = {name: value for name, value in asdict(options).items() if name != "salt"}
    return [sys.executable, "-m", "stratos_offline", orjson.dumps(own).decode()]


def shown_rows(out: Path) -> list[dict[str, Any]]:
    """Lines of results without how much of a prompt was cached."""
    rows = rows_of(out / "output.jsonl")
    for row in rows:
        row["response"]["body"]["usage"].pop("prompt_tokens_details", None)
    return rows


@pytest.fixture
def expected(file: Path, tmp_path: Path) -> list[dict[str, Any]]:
    run_job(job_options(file, tmp_path / "local", block_lines=100, engine=FAKE))
    return shown_rows(tmp_path / "local")


def tries_of(out: Path) -> Counter[str]:
    """How often each block was begun."""
    return Counter(path.name.rpartition("-")[0] for path in out.glob("blocks-*/tries/[!.]*"))


def actors() -> list[psutil.Process]:
    """Processes with an engine, of this cluster."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            if "MapWorker" in "".join(process.cmdline()):
                found.append(process)
    return found


def test_a_killed_actor_loses_at_most_its_block(
    cluster: Any, file: Path, tmp_path: Path, expected: list[dict[str, Any]]
) -> None:
    killed: list[int] = []
    tries: Counter[str] = Counter()

    def kill_once(progress: JobProgress) -> None:
        if progress.num_done >= 3 * BLOCK_LINES and not killed:
            process = actors()[0]
            killed.append(process.pid)
            process.kill()
        tries.update(tries_of(tmp_path / "out") - tries)

    progress = run_job(options_of(cluster, file, tmp_path / "out"), kill_once)
    assert killed
    assert killed[0] not in {process.pid for process in actors()}
    assert progress.num_done == NUM_LINES
    assert [row for row in expected if row["response"]["status_code"] != 200] == []
    assert shown_rows(tmp_path / "out") == expected
    repeated = [key for key, num in tries.items() if num > 1]
    assert len(tries) == NUM_LINES // BLOCK_LINES
    assert len(repeated) <= 1


def test_a_killed_driver_goes_on_and_no_finished_block_is_computed_again(
    cluster: Any, file: Path, tmp_path: Path, expected: list[dict[str, Any]]
) -> None:
    out = tmp_path / "out"
    options = options_of(cluster, file, out)
    with subprocess.Popen(command_of(options), stderr=subprocess.DEVNULL) as driver:
        wait_until(lambda: len(list(out.glob("blocks-*/results/*"))) >= 4 or driver.poll() is not None, "4 blocks")
        driver.send_signal(signal.SIGKILL)
        assert driver.wait() == -signal.SIGKILL
    wait_until(lambda: not actors(), "its actors are gone")
    there = {path.name: path.stat().st_mtime_ns for path in out.glob("blocks-*/results/[!.]*")}
    assert 4 <= len(there) < NUM_LINES // BLOCK_LINES
    kept: dict[str, int] = {}
    counts: list[int] = []

    def look(progress: JobProgress) -> None:
        counts.append(progress.num_kept_blocks)
        kept.update({path.name: path.stat().st_mtime_ns for path in out.glob("blocks-*/results/[!.]*")})

    assert run_job(options, look).num_done == NUM_LINES
    assert counts[0] == len(there)
    assert {name: kept[name] for name in there} == there
    found = shown_rows(out)
    for row in [*found, *expected]:
        row["response"]["body"].pop("created")
    assert found == expected


def test_a_node_that_vanishes_is_replaced(
    cluster: Any, file: Path, tmp_path: Path, expected: list[dict[str, Any]]
) -> None:
    gone: list[Any] = []

    def take_node(progress: JobProgress) -> None:
        if progress.num_done >= 3 * BLOCK_LINES and not gone:
            node = next(iter(sorted(cluster.worker_nodes, key=lambda node: node.node_id)))
            gone.append(node)
            cluster.remove_node(node, allow_graceful=False)
            add_node(cluster, 1)

    options = options_of(cluster, file, tmp_path / "out", min_engines=2)
    assert run_job(options, take_node).num_done == NUM_LINES
    assert gone
    assert gone[0].node_id not in {node.node_id for node in cluster.worker_nodes}
    assert shown_rows(tmp_path / "out") == expected


def test_a_driver_without_the_token_is_refused(cluster: Any, file: Path, tmp_path: Path) -> None:
    command = command_of(options_of(cluster, file, tmp_path / "out"))
    for name, value, text in (
        ("RAY_AUTH_TOKEN", "6" * 64, "or not with this token"),
        ("RAY_AUTH_MODE", "disabled", "is not token"),
    ):
        environment = {**os.environ, name: value}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert text in done.stderr.splitlines()[-1]
