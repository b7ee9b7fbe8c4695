"""KV out of one process' pages into another's on the same GPU: kernels, copies, and what of it a first token waits for.

The other process holds pages alone (``tests.support.kv.ipc_receiver``).  A prompt is computed in chunks; the KV of each
finished chunk is packed, copied and unpacked beside the next chunk, or, with overlap off, before it.  What this makes
a prompt slower is the exposed part; messages of workers over gRPC are not in it.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import torch

from scripts.gpu.random_model import BLOCK, RandomModel
from scripts.gpu.rig import Rig
from stratos.core.kv import KvRange
from stratos.engine.contract.plan import PlanRow, StepPlan
from stratos.engine.memory.copies import to_device
from stratos.engine.runner.cuda.runner import CudaRunner
from stratos.engine.triton_kernels.kv_copies import copy_kv
from tests.support.kv.ipc_receiver import RemotePages

PROMPTS, CHUNK, REPEATS = (1024, 2048, 4096), 512, 4
SLOT_TOKENS = CHUNK


def run(rig: Rig) -> None:
    """Section ``handoff``."""
    prompts: tuple[int, ...] = (40,) if rig.is_rehearsal else PROMPTS
    chunk = 20 if rig.is_rehearsal else CHUNK
    bandwidth = rig.copy_bandwidth()
    rig.record("copy_gb_per_s", round(bandwidth / 1e9, 1))
    with torch.inference_mode():
        model = RandomModel(rig, -(-max(prompts) // BLOCK))
        runner = model.runner(1, cuda_graphs=False)
    rig.attempt("kernels", lambda: _kernels(rig, runner, chunk, bandwidth))
    with tempfile.TemporaryDirectory() as folder:
        for prompt in prompts:
            rig.attempt(f"prompt_{prompt}", partial(_prompt, rig, runner, prompt, chunk, Path(folder) / "shared"))


def _kernels(rig: Rig, runner: CudaRunner, tokens: int, bandwidth: float) -> dict[str, Any]:
    """GB/s of pack and unpack, read and written bytes both counted, with and without the checksum."""
    pages, geometry = runner.pages.tensor.view(torch.int64), runner.info.geometry
    blocks = to_device(torch.randperm(-(-tokens // BLOCK), dtype=torch.int32).numpy(), rig.device)
    shape = (geometry.num_layers, 2, geometry.num_kv_heads, tokens, pages.shape[-1])
    run_ = torch.zeros(shape, dtype=torch.int64, device=rig.device)
    moved = 2 * run_.numel() * run_.itemsize
    found: dict[str, Any] = {}
    for is_pack in (True, False):
        for has_sum in (True, False):

            def work(is_pack: bool = is_pack, has_sum: bool = has_sum) -> object:
                return copy_kv(pages, blocks, 0, run_, layer_begin=0, is_pack=is_pack, has_sum=has_sum)

            name = ("pack" if is_pack else "unpack") + ("" if has_sum else "_without_sum")
            speed = moved / rig.event_seconds(work)
            found[name] = {"gb_per_s": round(speed / 1e9, 1), "of_copy": round(speed / bandwidth, 3)}
    return found


def _prompt(rig: Rig, runner: CudaRunner, tokens: int, chunk: int, directory: Path) -> dict[str, Any]:
    geometry, slot = runner.info.geometry, KvRange(0, chunk, 0, runner.info.geometry.num_layers)
    with _Loop() as loop:
        dtype, blocks = str(rig.dtype).removeprefix("torch."), -(-tokens // BLOCK)
        remote = loop.enter(RemotePages.start(directory, geometry, dtype, blocks, geometry.num_bytes(slot)))
        sender = _Sender(runner, remote, loop)
        repeats = 1 if rig.is_rehearsal else REPEATS

        def send_in_turn(frame: KvRange) -> None:
            sender.send(frame).result()

        # Triton's interpreter runs one kernel at a time: a rehearsal has no overlap.
        send_beside = send_in_turn if rig.is_rehearsal else sender.send
        alone, overlapped, in_turn = (
            min(_run(runner, tokens, chunk, after) for _ in range(repeats))
            for after in (lambda _: None, send_beside, send_in_turn)
        )
        sender.wait()
        return {
            "alone_ms": round(alone * 1e3, 2),
            "overlap_ms": round(overlapped * 1e3, 2),
            "in_turn_ms": round(in_turn * 1e3, 2),
            "exposed_with_overlap": round(overlapped / alone - 1, 4),
            "exposed_in_turn": round(in_turn / alone - 1, 4),
            "ipc_copy_gb_per_s": round(sender.num_bytes / sender.copy_s / 1e9, 1),
            "unpack_ms_per_chunk": round(sender.unpack_s / sender.num_frames * 1e3, 3),
        }


def _run(runner: CudaRunner, tokens: int, chunk: int, after: Callable[[KvRange], Any]) -> float:
    """Seconds from the first chunk until the KV of the last one is there."""
    table, sent, begin_s = tuple(range(-(-tokens // BLOCK))), [], time.perf_counter()
    for start in range(0, tokens, chunk):
        end = min(tokens, start + chunk)
        ids = tuple((7 * i) % runner.info.vocab_size for i in range(start, end))
        row = PlanRow(seq_id=-1, token_ids=ids, start=start, block_table=table[: -(-end // BLOCK)])
        handle = runner.launch(StepPlan(step=0, rows=(row,)))
        runner.sample(handle)
        if (errors := runner.collect(handle).errors) != {}:
            raise RuntimeError(f"a prompt cannot be computed: {errors}")
        sent.append(after(KvRange(start, end, 0, runner.info.geometry.num_layers)))
    for pending in sent:
        if isinstance(pending, Future):
            pending.result()
    return time.perf_counter() - begin_s


class _Sender:
    """Packs and sends frames in a thread of its own, in order."""

    def __init__(self, runner: CudaRunner, remote: RemotePages, loop: _Loop) -> None:
        self._runner, self._remote, self._loop = runner, remote, loop
        self._turn = asyncio.Lock()
        self.copy_s = self.unpack_s = 0.0
        self.num_bytes = self.num_frames = 0

    def send(self, frame: KvRange) -> Future[None]:
        return self._loop.submit(self._send(frame))

    def wait(self) -> None:
        """Until nothing is under way."""
        self._loop.submit(self._turn.acquire()).result()

    async def _send(self, frame: KvRange) -> None:
        async with self._turn:
            table = tuple(range(-(-frame.token_end // BLOCK)))
            payload, checksum = await asyncio.to_thread(self._runner.pack, table, frame)
            answer = await self._remote.send(payload, checksum, frame)
        if not answer["is_right"]:
            raise RuntimeError("the checksum of what was unpacked is another one")
        self.copy_s += answer["copy_s"]
        self.unpack_s += answer["unpack_s"]
        self.num_bytes += 2 * payload.nbytes
        self.num_frames += 1


class _Loop:
    """An event loop in a thread."""

    def __enter__(self) -> _Loop:
        self._loop, self._entered = asyncio.new_event_loop(), list[Any]()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        for context in reversed(self._entered):
            self.submit(context.__aexit__(None, None, None)).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def enter(self, context: Any) -> Any:
        entered = self.submit(context.__aenter__()).result()
        self._entered.append(context)
        return entered

    def submit(self, work: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)
