"""One kernel makes the inputs of decode steps that torch's many make, bit for bit, over steps that build on others."""

from __future__ import annotations

import random

import pytest
import torch

from tests.support.reference.triton_interpreter import DEVICE
from stratos.core.kv import KvGeometry
from stratos.engine.attention.triton_paged import TritonPagedAttention
from stratos.engine.contract.kept_tables import KeptTables
from stratos.engine.contract.plan import PREVIOUS_TOKEN, PlanRow, StepPlan
from stratos.engine.memory.kv_pages import KvPages
from stratos.engine.runner.cuda import packed_inputs, tables
from stratos.engine.runner.cuda.tables import DeviceTables
from stratos.engine.triton_kernels import decode_inputs

BLOCK, MAX_BATCH, WIDTH = 4, 6, 12


@pytest.fixture(scope="module")
def attention() -> TritonPagedAttention:
    geometry = KvGeometry(num_layers=1, num_kv_heads=1, head_dim=8, block_size=BLOCK, element_bytes=4)
    pages = KvPages(geometry, 1, torch.float32, torch.device(DEVICE))
    return TritonPagedAttention(pages, 2, (None,))


class Sequences:
    """Sequences that grow, end, and come back with another table."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._tables: dict[int, list[int]] = {}
        self._next_id = 0

    def plan(self, num_rows: int) -> StepPlan:
        draw, ended = self._draw, []
        for seq_id in list(self._tables):
            if draw.random() < 0.1 or len(self._tables[seq_id]) == WIDTH:
                del self._tables[seq_id]
                ended.append(seq_id)
        while len(self._tables) < num_rows:
            self._next_id += 1
            self._tables[self._next_id] = []
        rows = [self._row(seq_id) for seq_id in draw.sample(sorted(self._tables), num_rows)]
        return StepPlan(step=0, rows=tuple(rows), ended=tuple(ended))

    def _row(self, seq_id: int) -> PlanRow:
        draw, table = self._draw, self._tables[seq_id]
        begin = draw.choice([0, len(table), len(table), max(0, len(table) - 1)])
        end = min(WIDTH, max(1, len(table) + draw.choice([0, 0, 1, 3])))
        table[begin:] = [draw.randrange(1000) for _ in range(begin, end)]
        continues = draw.random() < 0.5
        return PlanRow(
            seq_id=seq_id,
            token_ids=(PREVIOUS_TOKEN if continues else draw.randrange(97),),
            start=(end - 1) * BLOCK + draw.randrange(BLOCK),
            block_table=tuple(table[begin:]),
            table_begin=begin,
            continues=continues,
        )


def state(device_tables: DeviceTables, attention: TritonPagedAttention, size: int) -> list[torch.Tensor]:
    """Everything that a step of ``size`` rows reads."""
    metadata = device_tables.metadata(attention, size)
    rows = metadata.decode
    assert rows is not None
    tensors = [metadata.slots, rows.query_blocks, rows.query_begins, rows.contexts, rows.block_tables]
    tensors += [device_tables.token_ids[:size], device_tables.positions[:size], device_tables.last_tokens]
    return [*tensors, *([] if rows.items is None else [rows.items])]


@pytest.mark.parametrize("max_values", [1 << 16, 5], ids=["in the buffer", "too many for the buffer"])
@pytest.mark.parametrize("has_parts", [True, False])
def test_the_kernel_and_torch_write_the_same(
    monkeypatch: pytest.MonkeyPatch, attention: TritonPagedAttention, has_parts: bool, max_values: int
) -> None:
    monkeypatch.setattr(decode_inputs, "ENTRIES", 4)
    for module in (packed_inputs, tables):
        monkeypatch.setattr(module, "MAX_VALUES", max_values)
    kept, sequences, draw = KeptTables(), Sequences(seed=max_values), random.Random(3)
    parts = attention.context_parts if has_parts else None
    both = [
        DeviceTables(16, MAX_BATCH, WIDTH, BLOCK, torch.device(DEVICE), parts, kept, has_kernel=has_kernel)
        for has_kernel in (False, True)
    ]
    for _ in range(30):
        size = draw.choice([1, 2, 4, 6])
        plan = sequences.plan(draw.randint(0, size))
        kept.apply(plan)
        sampled = torch.randint(0, 97, (size,), device=DEVICE)
        found = []
        for device_tables in both:
            device_tables.note_changes(plan.rows)
            places = device_tables.fill(plan.rows, size)
            for _ in range(2):  # a graph may be replayed again
                device_tables.prepare(size)
            found.append([places.clone(), *(tensor.clone() for tensor in state(device_tables, attention, size))])
            device_tables.keep_tokens(places, sampled)
        assert all(torch.equal(torch_, kernel) for torch_, kernel in zip(*found, strict=True))
        for row in plan.rows:
            place = both[1].rows.place([row.seq_id])[0]
            table = kept.of(row.seq_id)
            assert both[1].block_tables[place, : len(table)].tolist() == table.tolist()
