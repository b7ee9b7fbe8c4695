"""KV on disk on a real platform: two gateways, two routers, a decode worker that computes and is killed.

What a small pool evicted is found again by the next process of the worker, bit for bit.  Flipped bits in all files are
computed again and counted, and a deleted tenant leaves no file.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.waiting import LIMIT_S, wait_until
from tests.support.worlds.platform_process import PlatformProcess, running_platform

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SIZE = ("--gateways", "2", "--routers", "2", "--prefill", "0", "--decode", "1", "--max-decode", "1", "--kv-disk", "1")
NUM_BLOCKS, BLOCK_BYTES = 64, 16 * 6144
ENV = {
    "STRATOS_DECODE_WORKER_RUNNER__KV_POOL_BYTES": str(NUM_BLOCKS * BLOCK_BYTES),
    "STRATOS_DECODE_WORKER_SCHEDULER__SWITCHES__SWAP_COSTS": "false",
}
PROMPT_TOKENS = 400


@pytest.fixture(scope="module", params=["thread", "process"])
def platform(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    env = ENV | {"STRATOS_DECODE_WORKER_ENGINE_PROCESS": request.param}
    with running_platform(tmp_path_factory.mktemp("platform"), *SIZE, env=env) as running:
        yield running


def prompt(kind: int) -> list[int]:
    return [1 + (kind * 31 + place * (kind + 3)) % 907 for place in range(PROMPT_TOKENS)]


def ask(platform: PlatformProcess, kind: int, key: str = "") -> tuple[list[int], int]:
    """Token ids of a greedy answer, and how many tokens of its prompt were cached."""
    headers = {"authorization": f"Bearer {key or platform.api_key}"}
    body: dict[str, Any] = {
        "model": "base", "prompt": prompt(kind), "max_tokens": 24, "temperature": 0, "return_token_ids": True,
        "ignore_eos": True,
    }  # fmt: skip
    answer = httpx.post(
        f"{platform.base_url}/completions", json=body, headers=headers, timeout=LIMIT_S, trust_env=False
    )
    assert answer.status_code == 200, answer.text
    told = answer.json()
    return told["choices"][0]["token_ids"], told["usage"]["prompt_tokens_details"]["cached_tokens"]


def metric(platform: PlatformProcess, name: str, **labels: str) -> float:
    address = platform.processes()["decode-0"]["metrics_address"]
    text = httpx.get(f"http://{address}/metrics", trust_env=False, timeout=LIMIT_S).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


def num_refused(platform: PlatformProcess) -> float:
    """Blocks that were read and not taken, by which part of the file a flipped bit was in."""
    name, reasons = "stratos_kv_disk_not_loaded_blocks_total", ("damaged", "other_key")
    return sum(metric(platform, name, reason=reason) for reason in reasons)


def files(platform: PlatformProcess) -> list[Path]:
    return sorted((platform.data_dir / "kv" / "decode-0").glob("*/*/*.kv"))


def kill_worker(platform: PlatformProcess) -> None:
    """The worker dies, and its next process serves."""
    before = platform.processes()["decode-0"]["pid"]
    os.kill(before, signal.SIGKILL)

    def is_back() -> bool:
        now = platform.processes().get("decode-0", {})
        return (
            now.get("pid") not in (None, before)
            and bool(now.get("metrics_address"))
            and bool(platform.status()["workers"])
        )

    wait_until(is_back)


def test_a_prefix_outlives_its_worker_on_disk_and_never_comes_back_wrong(platform: PlatformProcess) -> None:
    first, num_cached = ask(platform, 0)
    assert num_cached == 0
    for kind in range(1, 6):
        ask(platform, kind)  # they push the first one out of a pool of 64 blocks
    wait_until(lambda: metric(platform, "stratos_kv_disk_blocks", state="stored") >= 25)

    kill_worker(platform)
    again, num_cached = ask(platform, 0)
    assert again == first
    assert num_cached >= PROMPT_TOKENS // 2
    # The worker shows its counts in turns, which come later than an answer does.
    wait_until(lambda: metric(platform, "stratos_kv_disk_moved_blocks_total", direction="in") * 16 == num_cached)
    wait_until(lambda: metric(platform, "stratos_kv_disk_blocks", state="stored") == len(files(platform)))
    assert metric(platform, "stratos_kv_disk_bytes") == sum(path.stat().st_size for path in files(platform))

    for number, path in enumerate(files(platform)):
        content = bytearray(path.read_bytes())
        content[number * 7919 % len(content)] ^= 1 << number % 8
        path.write_bytes(content)
    kill_worker(platform)
    again, num_cached = ask(platform, 0)
    assert (again, num_cached) == (first, 0)
    wait_until(lambda: num_refused(platform) == 1)
    assert metric(platform, "stratos_kv_disk_moved_blocks_total", direction="in") == 0


def test_a_deleted_tenant_leaves_no_file(platform: PlatformProcess) -> None:
    before = {path.parent for path in files(platform)}
    admin_key = platform.stratos("keys", "create", "--tenant", "platform", "--role", "admin").stdout.strip()
    key = platform.stratos("keys", "create", "--tenant", "leaves").stdout.strip()
    for kind in range(10, 15):
        ask(platform, kind, key)
    wait_until(lambda: {path.parent for path in files(platform)} - before)
    (folder,) = {path.parent for path in files(platform)} - before
    url, headers = platform.facts()["admin_url"], {"authorization": f"Bearer {admin_key}"}
    answer = httpx.delete(f"{url}/admin/v1/tenants/leaves", headers=headers, timeout=LIMIT_S, trust_env=False)
    assert answer.status_code == 200, answer.text
    wait_until(lambda: not folder.exists())
    assert before <= {path.parent for path in files(platform)}
    # counts of an engine in a process of its own come some 50 ms later
    wait_until(lambda: metric(platform, "stratos_kv_disk_dropped_blocks_total", reason="forgotten") > 0)
