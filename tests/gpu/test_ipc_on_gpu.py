"""KV from the pages of one process into those of another, through memory that one exports and the other maps."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from tests.support.reference.triton_interpreter import DEVICE
from stratos.core.device.checksum import mixed_sum
from stratos.core.device.payload import DevicePayload
from stratos.core.kv import KvGeometry, KvRange
from stratos.engine.memory.kv_pages import KvPages
from stratos.engine.runner.cuda.page_copies import PageCopies
from tests.support.kv.ipc_receiver import RemotePages

IS_GPU = DEVICE == "cuda"
GEOMETRY = KvGeometry(
    num_layers=4 if IS_GPU else 1, num_kv_heads=8 if IS_GPU else 1, head_dim=128 if IS_GPU else 8, block_size=16,
    element_bytes=2,
)  # fmt: skip
NUM_BLOCKS = 64 if IS_GPU else 2
pytestmark = [] if IS_GPU else pytest.mark.slow  # interpreted it takes seconds, and tells less


async def cross(folder: Path) -> None:
    pages = KvPages(GEOMETRY, NUM_BLOCKS, torch.bfloat16, torch.device(DEVICE))
    pages.tensor.view(torch.int64).random_()
    copies, table = PageCopies(pages), tuple(range(NUM_BLOCKS))
    last, layers = NUM_BLOCKS * GEOMETRY.block_size - 3, GEOMETRY.num_layers
    frames = [KvRange(0, last // 2, 0, layers), KvRange(last // 2, last, 0, layers)]
    slot_bytes = GEOMETRY.num_bytes(KvRange(0, last, 0, layers))
    async with RemotePages.start(folder / "shared", GEOMETRY, "bfloat16", NUM_BLOCKS, slot_bytes) as remote:
        for frame in frames:
            run, checksum = copies.pack(table, frame)
            payload = DevicePayload(
                address=run.data_ptr(), nbytes=run.numel(), read=lambda run=run: run.cpu().numpy().tobytes(), owner=run
            )
            answer = await remote.send(payload, checksum, frame)
            assert answer["checksum"] == checksum
            assert not (await remote.send(payload, checksum + 1, frame))["is_right"], "another checksum does not fit"
        whole = KvRange(0, last, 0, layers)
        assert await remote.digest(whole) == mixed_sum(pages.gather(table, whole))


def test_kv_crosses_to_another_process(tmp_path: Path) -> None:
    with torch.inference_mode():
        asyncio.run(cross(tmp_path))
