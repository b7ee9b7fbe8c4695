"""A driver that is killed, with its blocks in S3: the same command goes on with what was computed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import boto3
import orjson
import pytest
from botocore.config import Config

from stratos_offline.engines.block_worker import BlockWorker
from stratos_offline.job import Job
from stratos_offline.options import JobOptions
from tests.support.servers.s3_server import BUCKET, s3_server
from tests.support.waiting import wait_until
from tests.support.worlds.offline_job import CREATED_UNIX_S, InlinePool, job_options, rows_of, write_lines

NUM_LINES = 40


@pytest.fixture
def bucket() -> Iterator[tuple[str, Any]]:
    """URL of the server, and what lists its objects."""
    with s3_server() as url:
        client = boto3.session.Session().client(
            "s3", endpoint_url=url, region_name="us-east-1", config=Config(s3={"addressing_style": "path"})
        )
        yield url, client
        client.close()


def keys(client: Any, part: str = "") -> list[str]:
    found = client.list_objects_v2(Bucket=BUCKET, Prefix="jobs/").get("Contents", ())
    return [entry["Key"] for entry in found if part in entry["Key"]]


def driver(options: JobOptions) -> subprocess.Popen[bytes]:
    own = {name: value for name, value in asdict(options).items() if name != "salt"}
    command = [sys.executable, "-m", "stratos_offline", orjson.dumps(own).decode()]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


@pytest.mark.slow
def test_a_driver_that_is_killed_goes_on_from_s3(tmp_path: Path, bucket: tuple[str, Any]) -> None:
    url, client = bucket
    file = write_lines(tmp_path / "in.jsonl", [f"line {number}" for number in range(NUM_LINES)])
    where = {"store_url": f"s3://{BUCKET}/jobs", "s3_endpoint": url}
    options = job_options(file, tmp_path / "out", block_lines=2, **where)
    with driver(options) as killed:
        wait_until(lambda: len(keys(client, "/results/")) >= 3, "three blocks are computed")
        killed.kill()
    assert not (tmp_path / "out" / "output.jsonl").exists()
    progress = Job(options, lambda ask, end: InlinePool(BlockWorker(ask, end)), CREATED_UNIX_S).run()
    assert 3 <= progress.num_kept_blocks < NUM_LINES // 2
    rows = rows_of(tmp_path / "out" / "output.jsonl")
    assert [row["custom_id"] for row in rows] == [f"c{number}" for number in range(NUM_LINES)]
    assert keys(client) == []
