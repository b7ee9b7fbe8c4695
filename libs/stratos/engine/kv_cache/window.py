"""Which blocks of a sequence no token will see again, where every layer of the model sees a bounded context.

A token at position p sees the last ``size`` positions up to its own, and the first ``num_sinks`` of the sequence
(StreamingLLM's attention sinks; 0 for a sliding window).  So while a sequence runs, the blocks between those that hold
sinks and the one where the next token's window begins may be given up.  Block tables keep their length: the entry of
a block given up is ``RELEASED``, and ``Sequence.num_released`` counts them.  A released block with a name stays in the
prefix cache until it is evicted.

Where some layers see the whole context and others a window (``contract.kv_groups``), blocks stay in their tables and
only their window parts are given up: ``Sequence.num_passed`` counts those, from the first block on.

Owns arithmetic only; the scheduler releases.  Prefill jobs and inputs to embed keep all their blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.contract.runner import RunnerInfo
from stratos.engine.settings import SchedulerConfig


@dataclass(frozen=True, slots=True)
class KvWindow:
    """The visible part of a context, in blocks."""

    size: int
    """Tokens of the window, the token itself included."""
    num_sinks: int
    block_size: int
    max_step_tokens: int
    """Tokens that one step computes at most: their blocks are held together with the window."""

    @property
    def num_head_blocks(self) -> int:
        """Blocks at the beginning that are never given up."""
        return -(-self.num_sinks // self.block_size)

    @property
    def max_blocks(self) -> int:
        """Blocks that a sequence needs at a time: sinks, the window, a step, and two ends that are not full."""
        return self.num_head_blocks + -(-(self.size + self.max_step_tokens) // self.block_size) + 2

    def first_block(self, position: int) -> int:
        """Index of the first block, after those of sinks, that the token at ``position`` or a later one sees."""
        return max(self.num_head_blocks, (position + 1 - self.size) // self.block_size)

    def needed(self, num_blocks: int) -> int:
        """Index of the first of ``num_blocks`` full blocks of a prefix that has to be known; with sinks all have to."""
        return 0 if self.num_sinks else self.gap(num_blocks).stop

    def gap(self, num_blocks: int) -> range:
        """Indexes of those of ``num_blocks`` full blocks of a prefix that no later token sees."""
        begin = min(num_blocks, self.num_head_blocks)
        return range(begin, max(begin, min(num_blocks, self.first_block(num_blocks * self.block_size))))

    def bounded(self, num_blocks: int, num_choices: int = 1) -> int:
        """Blocks that so many choices, with tables of ``num_blocks`` together, hold at most."""
        return min(num_blocks, num_choices * self.max_blocks)

    def at_once(self, num_prompt_blocks: int, num_blocks: int) -> int:
        """Blocks that the pool must have for a prompt, which a hand-off carries whole, and what is held behind it."""
        return max(num_prompt_blocks, self.bounded(num_blocks))


@dataclass(frozen=True, slots=True)
class PartWindow(KvWindow):
    """The window of the layers that have one; whole blocks are counted."""

    num_pages: int
    num_window: int
    """Pages of a block, and of its window part."""

    def spared(self, num_passed: int) -> int:
        """Blocks that the pages of so many window parts are."""
        return num_passed * self.num_window // self.num_pages

    def bounded(self, num_blocks: int, num_choices: int = 1) -> int:
        return num_blocks - self.spared(max(0, num_blocks - num_choices * self.max_blocks))


def make_window(info: RunnerInfo, config: SchedulerConfig, *, is_fenced: bool = False) -> KvWindow | None:
    """The window of an engine, where there is one and blocks may be given up.

    Raises:
        InvalidCheckpoint: the settings cannot be combined with StreamingLLM.
    """
    if info.is_streaming and not config.baseline.is_paged:
        raise InvalidCheckpoint("attention_window needs the paged KV cache: the baselines without it bound nothing")
    if not (config.switches.window_release and config.baseline.is_paged):
        return None
    tokens, size = config.step_tokens(info.max_model_len), info.geometry.block_size
    if info.groups is not None:
        if is_fenced:
            return None  # a launched step may see what its sequence has passed
        return PartWindow(info.groups.window, 0, size, tokens, info.groups.num_pages, info.groups.num_window)
    return KvWindow(info.window, info.num_sinks, size, tokens) if info.window else None
