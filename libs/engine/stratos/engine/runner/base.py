"""The runner contract: everything that touches the model and the KV pages.

``launch(plan)`` starts the forward pass, ``sample(handle, masks)`` samples from its logits,
``collect(handle)`` waits and returns tokens.  On CPU each call does its work at once (lag 0); on GPU
``launch`` and ``sample`` only enqueue, and the scheduler runs one step ahead (lag 1).

KV on the wire is one contiguous run laid out ``[layers, 2 (K then V), kv_heads, tokens, head_dim]`` in the
KV dtype; ``gather`` reads pages into it and ``scatter`` writes it into pages.  Both may be called from
another thread than the step loop, for blocks that no launched step writes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratos.core.adapter_files import AdapterFiles
from stratos.core.request import KvGeometry, KvIdentity
from stratos.engine.plan import StepPlan, StepTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerInfo:
    """Facts of a loaded model that scheduler and workers need."""

    identity: KvIdentity
    geometry: KvGeometry
    num_blocks: int
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    model_path: Path | None = None
    can_generate: bool = True
    """The model has an output layer; one without it only embeds."""
    embedding_size: int = 0
    """Components of an embedding; 0 when the runner does not pool."""


class Runner(ABC):
    """Executes step plans over one KV pool."""

    info: RunnerInfo

    @abstractmethod
    def launch(self, plan: StepPlan) -> Any:
        """Do the plan's block copies and its forward pass; returns a handle. At most one launched plan per handle."""

    @abstractmethod
    def sample(self, handle: Any, masks: Any = None) -> None:
        """Sample every row that asks for it. ``masks``: allowed-token bit masks per row, or ``None``."""

    @abstractmethod
    def collect(self, handle: Any) -> StepTokens:
        """Wait for the step and return its tokens, rows in plan order."""

    @abstractmethod
    def gather(
        self, block_table: Sequence[int], token_begin: int, token_end: int, layer_begin: int, layer_end: int
    ) -> memoryview:
        """Copy KV of a token range out of the pages, in wire layout.

        Args:
            block_table: block ids of the sequence from position 0.
            token_begin: first token; ``token_end``: one past the last.
            layer_begin: first layer; ``layer_end``: one past the last.

        Returns:
            Bytes, C-contiguous, owned by the caller.
        """

    @abstractmethod
    def scatter(
        self,
        block_table: Sequence[int],
        token_begin: int,
        token_end: int,
        layer_begin: int,
        layer_end: int,
        payload: memoryview,
    ) -> None:
        """Write KV in wire layout into the pages of a token range.

        Raises:
            ValueError: ``payload`` does not have the size of the range.
        """

    @abstractmethod
    def load_adapter(self, files: AdapterFiles, pinned: Container[str] = frozenset()) -> None:
        """Load a checked adapter so that plans may name its digest; may run beside a step. Loading it again is a no-op.

        When every slot is taken the least recently used adapter that is not in ``pinned`` makes room. ``pinned`` is
        looked at when that happens and may have changed since the call: loading takes a while.

        Raises:
            InvalidAdapter: its shapes do not fit this model.
            AdapterUnavailable: every slot is pinned.
        """

    @abstractmethod
    def unload_adapter(self, digest: str) -> None:
        """Forget an adapter that no sequence uses; unknown digests are ignored."""

    @abstractmethod
    def resident_adapters(self) -> tuple[str, ...]:
        """Digests of the loaded adapters."""
