"""The KV pool of a model with KV groups: pages of some layers each (``contract.kv_groups``), whole blocks to others.

A page is laid out as a block of fewer layers would be.  Block tables hold the pages of each block side by side, and the
wire layout is what it always is: ``[layers, 2, kv_heads, tokens, row]`` with layers in the model's order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from stratos.core.kv import KvGeometry, KvRange
from stratos.engine.contract.kv_groups import KvGroups, group_layers
from stratos.engine.memory.kv_codes import KvCodes
from stratos.engine.memory.kv_pages import KvPages
from stratos.engine.settings import RunnerConfig, SchedulerConfig


def choose_groups(
    windows: tuple[int | None, ...], config: RunnerConfig, scheduler: SchedulerConfig | None, device: torch.device
) -> KvGroups | None:
    """Pages of a block for a model on a CPU whose window parts an engine gives up; ``None``: a block is one page.

    What moves blocks whole keeps them so: tiers below the pool, a plan ahead of the step that runs.  So does a context
    that a window and a step fill.
    """
    groups = group_layers(windows)
    if groups is None or scheduler is None or device.type != "cpu" or config.host_pool_bytes:
        return None
    switches = scheduler.switches
    if not (switches.window_release and scheduler.baseline.is_paged) or switches.overlap:
        return None
    held = groups.window + scheduler.step_tokens(config.max_model_len) + 2 * config.block_size
    return groups if held < config.max_model_len else None


class GroupedPages(KvPages):
    """``num_blocks`` blocks of the model, in pages.

    Args:
        groups: pages of a block.
        geometry: of a token's KV in all layers.
        num_blocks: whole blocks of the pool.
        dtype: this and the rest as of ``KvPages``; spare blocks are whole, too.
    """

    def __init__(
        self,
        groups: KvGroups,
        geometry: KvGeometry,
        num_blocks: int,
        dtype: torch.dtype,
        device: torch.device,
        key_unit: int = 0,
        codes: KvCodes | None = None,
        num_spare: int = 0,
    ) -> None:
        page, count = replace(geometry, num_layers=groups.num_layers), groups.num_pages
        super().__init__(page, num_blocks * count, dtype, device, key_unit, codes, num_spare * count)
        self.groups, self.num_blocks = groups, num_blocks
        self._num_layers, self._pages_per_block = geometry.num_layers, count

    @property
    def layout(self) -> str:
        return f"{super().layout} of {self.groups.num_pages}"

    @torch.inference_mode()
    def gather(self, block_table: Sequence[int], kv_range: KvRange) -> memoryview:
        run = torch.empty(self.wire_shape(block_table, kv_range), dtype=self.tensor.dtype)
        for layers, column, part in self._columns(block_table, kv_range):
            found = run.new_empty(len(layers), *run.shape[1:])
            for wire, page in self._pieces(column, part, found):
                wire.copy_(page)
            run[torch.tensor(layers)] = found
        return memoryview(run.view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]  # numpy hides the protocol

    @torch.inference_mode()
    def scatter(self, block_table: Sequence[int], kv_range: KvRange, payload: memoryview) -> None:
        run = self._opened(payload, self.wire_shape(block_table, kv_range))
        if run is None:
            return
        for layers, column, part in self._columns(block_table, kv_range):
            for wire, page in self._pieces(column, part, run[torch.tensor(layers)]):
                page.copy_(wire)

    def _columns(
        self, block_table: Sequence[int], kv_range: KvRange
    ) -> Iterator[tuple[list[int], Sequence[int], KvRange]]:
        """Column by column: its layers by their places in the range, its pages, and the range in them."""
        for index, column in enumerate(self.groups.columns):
            inside = [p for p, layer in enumerate(column) if kv_range.layer_begin <= layer < kv_range.layer_end]
            if inside:
                layers = [column[place] - kv_range.layer_begin for place in inside]
                part = KvRange(kv_range.token_begin, kv_range.token_end, inside[0], inside[-1] + 1)
                yield layers, block_table[index :: self.groups.num_pages], part
