"""A block table walked through: sequences take, grow and give back blocks, and every token's KV has one address.

The walk is on the engine's own block manager and pages.  The KV of a token lies at

    block = table[position // block_size]        place = position % block_size
    byte  = ((((block * layers + layer) * 2 + side) * kv_heads + head) * block_size + place) * head_dim * element_bytes

with side 0 for keys and 1 for values.  Each address of the walk is compared with that of the tensor's own element.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import torch

from stratos.calculators.formula import Formula
from stratos.core.kv import KvGeometry
from stratos.engine.kv_cache.block_manager import BlockManager
from stratos.engine.memory.kv_pages import KvPages
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind, OwnFigure
from stratos.reproduce.record.claim import at_least, exactly
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.record.result import ResultTable, RowResult

GEOMETRY = KvGeometry(num_layers=6, num_kv_heads=4, head_dim=32, block_size=16, element_bytes=2)
"""The shipped model's."""
NUM_BLOCKS = 12
SIDES = ("key", "value")
USED_TOKENS, SLOT_TOKENS, NUM_SLOTS = 1000, 4096, 30
WASTED = Formula("wasted_share", "1 - used_tokens / slot_tokens")


@dataclass(slots=True)
class WalkedPool:
    """Sequences by name over one block manager."""

    blocks: BlockManager = field(default_factory=lambda: BlockManager(NUM_BLOCKS, GEOMETRY.block_size))
    tables: dict[str, list[int]] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)

    def extend(self, name: str, num_tokens: int) -> None:
        """Allocate or append: take blocks until the table covers the tokens."""
        table = self.tables.setdefault(name, [])
        taken = self.blocks.allocate(self.blocks.blocks_for(num_tokens) - len(table))
        assert taken is not None, "the pool is too small for the walk"
        table += taken
        self.lengths[name] = num_tokens

    def free(self, name: str) -> None:
        """Give all blocks of a sequence back."""
        self.blocks.release(self.tables.pop(name))
        del self.lengths[name]

    @property
    def num_unused_places(self) -> int:
        """Token places of allocated blocks that hold no token."""
        held = sum(len(table) for table in self.tables.values()) * GEOMETRY.block_size
        return held - sum(self.lengths.values())


def measure(conditions: RowConditions) -> RowResult:
    """The walk, the addresses of its end, and how full blocks are for many sequences."""
    pool, steps = WalkedPool(), []
    for action, name, num_tokens in (
        ("allocate", "A", 40), ("allocate", "B", 20), ("append", "A", 48), ("append", "A", 49), ("free", "B", 0),
        ("allocate", "C", 60), ("free", "A", 0), ("append", "C", 70),
    ):  # fmt: skip
        if action == "free":
            pool.free(name)
        else:
            pool.extend(name, num_tokens)
        table = " ".join(str(block) for block in pool.tables.get(name, ())) or "-"
        steps.append((action, name, num_tokens, table, pool.blocks.num_free, pool.num_unused_places))
    num_addresses, num_wrong = _compare_addresses(pool.tables["C"], pool.lengths["C"])
    used_share = _used_share(conditions.seed)
    return RowResult(
        answers=[
            ClaimAnswer(
                claim=exactly("3.4", "30 slots of 4 K hold 1 K each: 76 % wasted", 0.76),
                recomputed=WASTED(used_tokens=USED_TOKENS, slot_tokens=SLOT_TOKENS),
            ),
            ClaimAnswer(
                claim=at_least("3.4", "paging uses 97 % of it", 0.97),
                own=OwnFigure(
                    name="used_share_of_blocks", value=used_share, kind=FigureKind.SIMULATED,
                    how="30 sequences of 1 K tokens in the mean, exponential lengths, blocks of 16",
                ),
            ),
        ],
        tables=[
            ResultTable(
                title=f"The walk: {NUM_BLOCKS} blocks of {GEOMETRY.block_size} tokens", kind=FigureKind.SIMULATED,
                columns=("action", "request", "tokens", "its blocks", "free blocks", "unused places"), rows=steps,
            ),
            ResultTable(
                title="Addresses of C's keys, head 0", kind=FigureKind.SIMULATED,
                columns=("request", "layer", "position", "entry", "block", "place", "byte"),
                rows=[_address_row("C", pool.tables["C"], layer, position)
                      for layer, position in ((0, 0), (0, 15), (0, 16), (3, 16), (5, 69))],
            ),
        ],
        notes=[f"{num_addresses} addresses were compared with the tensor's own: {num_wrong} differ."],
    )  # fmt: skip


def byte_of(table: list[int], layer: int, position: int, side: int = 0, head: int = 0) -> int:
    """Offset of a token's first element in the pool."""
    shape = GEOMETRY
    page = (table[position // shape.block_size] * shape.num_layers + layer) * 2 + side
    row = (page * shape.num_kv_heads + head) * shape.block_size + position % shape.block_size
    return row * shape.head_dim * shape.element_bytes


def _address_row(name: str, table: list[int], layer: int, position: int) -> tuple[str | int, ...]:
    entry, place = divmod(position, GEOMETRY.block_size)
    return name, layer, position, entry, table[entry], place, byte_of(table, layer, position)


def _compare_addresses(table: list[int], num_tokens: int) -> tuple[int, int]:
    """Addresses compared, and how many are not where the engine's pages have the element."""
    pages = KvPages(GEOMETRY, NUM_BLOCKS, torch.bfloat16, torch.device("cpu")).tensor
    compared = wrong = 0
    for layer in range(GEOMETRY.num_layers):
        for position in range(num_tokens):
            entry, place = divmod(position, GEOMETRY.block_size)
            for side, _ in enumerate(SIDES):
                for head in (0, GEOMETRY.num_kv_heads - 1):
                    element = pages[table[entry], layer, side, head, place]
                    wrong += element.data_ptr() - pages.data_ptr() != byte_of(table, layer, position, side, head)
                    compared += 1
    return compared, wrong


def _used_share(seed: int) -> float:
    """Tokens over places of their blocks, of as many sequences as the claim has slots."""
    rng = Random(seed)
    lengths = [max(1, min(SLOT_TOKENS, round(rng.expovariate(1 / USED_TOKENS)))) for _ in range(NUM_SLOTS)]
    blocks = BlockManager(NUM_SLOTS * SLOT_TOKENS // GEOMETRY.block_size, GEOMETRY.block_size)
    return sum(lengths) / (sum(blocks.blocks_for(length) for length in lengths) * GEOMETRY.block_size)
