"""Measure sleep: how fast a model wakes beside reading its file from the page cache, and what turns on a device cost.

    python -m scripts.bench.sleep --out benchmarks/results/sleep-2core-cpu.json

Waking takes memory from the system and fills it with the weights.  Beside it, by turns on the same machine, the file is
read into memory that is taken likewise, and into a buffer that is there already.  Rates are bytes of the file over wall
time: waking has all cores, as in a worker, and reading is one thread.  On a machine that others use too, run it with a
priority.  The turns are those of `stratos up --share-device` with the two shipped models, with the residency as it is
and without any.  Clients send one request after the other: each of them for both models by turns, or one half for one
model and one half for the other.
"""

from __future__ import annotations

import argparse
import asyncio
import mmap
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from scripts.bench.harness import MODEL, ROOT, by_turns, flag, run_bench, table
from stratos.cli.local.running import find_platform, list_processes
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.engine.settings import RunnerConfig
from stratos.reproduce.load.local_platform import running_platform
from stratos.reproduce.material.random_model import write_model

SHAPE = "llama-213m"
PIECE_BYTES = 4 << 20
MODELS = (MODEL, ROOT / "models" / "tools")
LOADS = ("by turns", "apart")
TURNS = {
    "residency": {},
    "no residency": {"MIN_RESIDENCY_S": "0", "BUSY_RESIDENCY_S": "0", "MAX_CHANGE_SHARE": "0.99"},
}


def timed(work: Callable[[], object]) -> dict[str, float]:
    """Seconds of a call."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return {"wall_s": round(time.perf_counter() - wall, 4), "cpu_s": round(time.process_time() - cpu, 4)}


def read_file(path: Path, *, is_fresh: bool) -> None:
    """Read a file from the page cache, into memory of its size or again and again into one piece."""
    size = path.stat().st_size
    memory = mmap.mmap(-1, size if is_fresh else PIECE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    view, place = memoryview(memory), 0
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(view[place : place + PIECE_BYTES]):
            place += count if is_fresh else 0
    view.release()
    memory.close()


def wakes(rounds: int, where: Path) -> dict[str, Any]:
    """Rates of waking and of reading, in GB of the file a second."""
    write_model(SHAPE, where, MODEL)
    path = where / "model.safetensors"
    runner = TorchRunner.load(RunnerConfig(model_path=where, kv_pool_bytes=64 << 20, max_model_len=512))
    before, freed = runner.probe(), []

    def wake() -> dict[str, float]:
        freed.append(runner.sleep())
        return timed(runner.wake)

    arms: dict[str, Callable[[], dict[str, float]]] = {
        "wake": wake,
        "read into memory": lambda: timed(lambda: read_file(path, is_fresh=True)),
        "read into a buffer": lambda: timed(lambda: read_file(path, is_fresh=False)),
    }
    runs = by_turns(rounds, arms, lambda arm, turn: arms[arm]())
    if runner.probe() != before:
        raise AssertionError("known tokens differ after waking")
    size = path.stat().st_size
    rates = {
        arm: round(size / statistics.median(run["wall_s"] for run in found) / 1e9, 2) for arm, found in runs.items()
    }
    ratios = [read["wall_s"] / own["wall_s"] for own, read in zip(runs["wake"], runs["read into memory"], strict=True)]
    return {
        "model": SHAPE,
        "file_bytes": size,
        "freed_bytes": freed[-1],
        "gb_per_s": rates,
        "wake_to_read_into_memory": round(statistics.median(ratios), 2),
        "rounds": runs,
    }


async def served(url: str, key: str, load: str, seconds: float, clients: int) -> dict[str, Any]:
    """Times until a whole answer of all that clients asked in so many seconds."""
    found: list[float] = []
    until = time.monotonic() + seconds
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=None, trust_env=False) as client:

        async def ask(number: int) -> None:
            for turn in range(1_000_000):
                if (began := time.monotonic()) > until:
                    return
                name = MODELS[(number + turn * (load == "by turns")) % 2].name
                body = {"model": name, "prompt": [5 + number, 6, 7], "max_tokens": 16, "ignore_eos": True}
                answer = await client.post("/completions", json=body)
                answer.raise_for_status()
                found.append(time.monotonic() - began)

        await asyncio.gather(*map(ask, range(clients)))
    return {"answers": len(found), "p50_s": round(statistics.median(found), 2), "max_s": round(max(found), 2)}


def turns(arm: str, seconds: float, clients: int) -> dict[str, Any]:
    """One platform under both loads, one after the other."""
    flags = [part for path in MODELS for part in ("--model", str(path))]
    flags += ["--share-device", ",".join(path.name for path in MODELS), "--prefill", "0"]
    env = {f"STRATOS_AUTOSCALER_TURNS__{name}": value for name, value in TURNS[arm].items()}
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as data_dir, running_platform(*flags, data_dir=data_dir, env=env) as platform:
        for load in LOADS:
            before = asyncio.run(changes(Path(data_dir)))
            row = asyncio.run(served(platform.url, platform.key, load, seconds, clients))
            after = asyncio.run(changes(Path(data_dir)))
            count, spent = (later - earlier for earlier, later in zip(before, after, strict=True))
            found[load] = {**row, "changes": round(count), "changing_s": round(spent, 1)}
    return found


async def changes(data_dir: Path) -> tuple[float, float]:
    """Changes of the device so far, and the seconds that they took."""
    processes = await list_processes(find_platform(data_dir, ""))
    [address] = [process.metrics_address for process in processes if process.name == "autoscaler"]
    async with httpx.AsyncClient(trust_env=False) as client:
        page = (await client.get(f"http://{address}/metrics")).text
    totals = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line[0] != "#"}
    name = "stratos_autoscaler_turn_change_seconds"
    return totals[f"{name}_count"], totals[f"{name}_sum"]


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Waking first, then turns."""
    with tempfile.TemporaryDirectory() as where:
        woken = wakes(args.rounds, Path(where))
    shared = {arm: turns(arm, args.seconds, args.clients) for arm in TURNS}
    cells = [("wake / read into memory", "", str(woken["wake_to_read_into_memory"]))]
    cells += [(f"{arm}, {load}", key, str(value)) for arm, loads in shared.items() for load, row in loads.items()
              for key, value in row.items()]  # fmt: skip
    return {"wake": woken, "seconds": args.seconds, "clients": args.clients, "turns": shared,
            "table": table(("what", "of", "figure"), cells)}  # fmt: skip


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--rounds", type=int, default=9),
        flag("--seconds", type=float, default=90.0),
        flag("--clients", type=int, default=4),
    )
