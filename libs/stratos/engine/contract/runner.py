"""The runner contract: everything that touches the model and the KV pages.

``launch(plan)`` starts the forward pass, ``sample(handle, ...)`` samples from its logits, ``collect(handle)`` waits
and returns tokens.  On CPU each call does its work at once (no overlap); on GPU ``launch`` and ``sample`` only
enqueue, and the scheduler runs one step ahead (overlap).  The step thread makes the calls in exactly this order:

    no overlap   launch 1, sample 1, collect 1, launch 2, sample 2, collect 2, ...
    overlap      launch 1, sample 1, launch 2, collect 1, sample 2, launch 3, collect 2, sample 3, ...

What may be in flight.  At most two handles, and only from ``launch k+1`` until ``collect k`` returns; plans execute in
launch order.  ``sample k`` comes before ``launch k+1``, so a row of plan k+1 with ``PlanRow.continues`` may read
the token that plan k samples from a buffer of the device; if plan k has no token for the sequence (its row
failed) the row runs harmlessly with any token.  ``sample k+1`` comes after ``collect k``: by then every token
of plan k is known to the host, so grammar masks and penalties are complete however far ahead the forward pass is.

Block tables.  A plan carries the entries that no plan before it carried, and a runner that reads them keeps the rest
(``kept_tables``), from the plan's launch on.  After a plan was taken back its sequences' next rows begin at entry 0.

Who owns which buffers.  A plan is immutable and the runner may keep it.  Input buffers of a launched plan belong to
the runner until its ``collect`` returns: two sets in rotation suffice.  What ``collect`` returns belongs to the caller.
Blocks of a launched plan, copies included, are given to no other sequence before the plan is collected; blocks that
``gather`` reads and ``scatter`` writes are not in the plan, except that ``gather`` may read computed tokens of a block
whose later tokens a launched plan writes.  KV of plan k is complete for other streams and threads when ``collect k``
has returned.  A sequence that ended in step k may have a row in plan k+1 already: its token is dropped.

Errors.  An exception of ``launch k+1`` leaves handle k valid.  After an exception of ``sample`` or ``collect``
every handle in flight is void.  In both cases the core calls ``abandon`` and runs the rows again, alone and without
overlap, so ``launch`` must be idempotent: the same tokens at the same places give the same KV.

Swaps.  A plan copies ``swap_outs``, then ``swap_ins``, then ``copies``, then runs its rows.  Without overlap blocks
that it copied out may be written by the same plan, and its rows read blocks that were copied in: the order must hold.
With overlap the core fences: until the plan is collected nothing writes a block that it copies out, and neither a row
nor a copy reads a block that it copies in.  So the copies may run on a stream of their own, between pinned slots and
pages, that waits for the work launched before; ``collect`` waits for them, and reports their time as ``swap_s``.
A failed plan's ``swap_outs`` count as not done, its ``swap_ins`` are planned again.

KV on the wire is one contiguous run laid out ``[layers, 2 (K then V), kv_heads, tokens, head_dim]`` in the
KV dtype; ``gather`` reads pages into it and ``scatter`` writes it into pages.  Both may be called from
another thread than the step loop, for blocks that no launched step writes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratos.common.errors import FeatureUnavailable
from stratos.core.device.facts import NO_DEVICE, DeviceFacts
from stratos.core.device.payload import DevicePayload
from stratos.core.files.adapter_files import AdapterFiles
from stratos.core.kv import KvGeometry, KvIdentity, KvRange
from stratos.core.requests.records import EngineRequest
from stratos.engine.contract.kv_groups import KvGroups
from stratos.engine.contract.plan import SampleSpec, StepPlan, StepTokens
from stratos.engine.contract.results import WeightCheck


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
    num_host_blocks: int = 0
    """Slots for blocks in host memory, each of the size of a block; 0 without a host tier."""
    page_layout: str = ""
    """Meaning of the bytes of a block's pages, beside identity and geometry: equal texts, equal layouts."""
    num_state_slots: int = 0
    """Slots for recurrent states (``states``); 0 for a model without."""
    window: int = 0
    """Positions that a token sees at most, up to its own, in every layer; 0: some layer sees the whole context."""
    num_sinks: int = 0
    """Tokens, where there is a window, at the beginning of a sequence that every token sees, too (StreamingLLM)."""
    groups: KvGroups | None = None
    """Pages of a block, where its layers lie in several; block tables then have that many entries for each block."""
    is_streaming: bool = False
    """Sequences may outgrow the context that the model was trained with (StreamingLLM)."""
    num_adapter_slots: int = 1 << 20
    """Adapters that it holds at once; the default stands for as many as there are."""
    step_weight_bytes: int = 0
    """Weights that every step reads; 0 where nothing is read."""
    token_operations: int = 0
    """Multiplications and additions of products with weights for each token, without the output layer; 0: not known."""
    sampled_operations: int = 0
    """The same of the output layer, for each token that is sampled."""
    quantization: str = ""
    """Scheme of the weights of linear layers; empty for floats."""
    device: DeviceFacts = NO_DEVICE
    """The GPU that it computes on."""
    can_probe: bool = False
    """``Runner.probe`` and ``Runner.check_weights`` may be called, and equal bits mean a sound engine."""
    overlap: bool = False
    """The next step is planned while this one runs, where ``SchedulerSwitches.overlap`` says nothing else."""

    def pages_of(self, blocks: Iterable[int]) -> tuple[int, ...]:
        """A block table over the pool without a block manager: the pages of these blocks, side by side."""
        if self.groups is None:
            return tuple(blocks)
        count = self.groups.num_pages
        return tuple(page for block in blocks for page in range(block * count, (block + 1) * count))

    def handed_ids(self, request: EngineRequest) -> tuple[int, ...]:
        """Tokens that a hand-off for a request is about: its prompt, and what its only choice emitted.

        The last one is computed at the receiver. What several choices emitted is computed there for each of them, and
        so is what follows the prompt where a window is bounded: its first blocks may be gone.
        """
        if len(request.choices) != 1 or self.window:
            return request.prompt_ids
        return request.prompt_ids + request.choices[0].emitted_ids


class Runner(ABC):
    """Executes step plans over one KV pool."""

    info: RunnerInfo
    user: object = None
    """Marks the engine made last over it. Pages, block tables and sampled tokens are of that one alone."""

    @abstractmethod
    def launch(self, plan: StepPlan) -> Any:
        """Do the plan's block copies and its forward pass; returns a handle. At most one launched plan per handle."""

    @abstractmethod
    def sample(self, handle: Any, masks: Any = None, specs: Mapping[int, SampleSpec] | None = None) -> None:
        """Sample every row that asks for it.

        Args:
            handle: of the plan launched last.
            masks: int32 words by (seq_id, ``SampleSpec.num_drafted``), a bit set per allowed token; places without an
                entry are unconstrained.
            specs: by seq_id, instead of those in the plan: a row that continues and needs its history
                (``SampleSpec.needs_history``) has it complete only now.
        """

    @abstractmethod
    def collect(self, handle: Any) -> StepTokens:
        """Wait for the step and return its tokens, rows in plan order."""

    def abandon(self) -> None:  # noqa: B027 - a runner without work in flight has nothing to do
        """Forget every handle in flight; returns when none of their work can touch a page any more."""

    @abstractmethod
    def gather(self, block_table: Sequence[int], kv_range: KvRange) -> memoryview:
        """Copy a range of KV out of the pages, in wire layout.

        Args:
            block_table: block ids of the sequence from position 0, or those of their pages (``RunnerInfo.groups``).
            kv_range: tokens by their positions, and layers.

        Returns:
            Bytes, C-contiguous, owned by the caller.
        """

    @abstractmethod
    def scatter(self, block_table: Sequence[int], kv_range: KvRange, payload: memoryview) -> None:
        """Write KV in wire layout into the pages.

        Raises:
            ValueError: ``payload`` does not have the size of the range.
        """

    def gather_state(self, slot: int, kv_range: KvRange) -> memoryview:
        """``gather`` of a range of states (``KvGeometry.is_state``) out of a slot that no launched step writes."""
        raise NotImplementedError

    def scatter_state(self, slot: int, kv_range: KvRange, payload: memoryview) -> None:
        """``scatter`` of such a range into a slot."""
        raise NotImplementedError

    def sleep(self) -> int:
        """Give the memory of weights and pages back; returns how many bytes. Any thread, while no plan is in flight.

        Kernels, slots in host memory and adapters stay. Until ``wake`` only ``read_slot``, ``fill_slot`` and
        ``resident_adapters`` may be called.

        Raises:
            FeatureUnavailable: this runner cannot; nothing has changed.
        """
        raise FeatureUnavailable("this engine cannot sleep")

    def wake(self) -> None:
        """Load the same weights again, bit for bit, and take pages, which hold zeros. Any thread.

        Raises:
            InvalidCheckpoint: the files are others by now, or memory is short; the runner must not be used again.
        """
        raise NotImplementedError

    can_verify: bool = False
    """Plans may have rows with drafted tokens."""
    has_device_pages: bool = False
    """``pack`` and ``unpack`` may be called."""

    def pack(self, block_table: Sequence[int], kv_range: KvRange) -> tuple[DevicePayload, int]:
        """``gather`` within the device's memory, with the checksum of what was copied (``core.device.checksum``)."""
        raise NotImplementedError

    def unpack(self, block_table: Sequence[int], kv_range: KvRange, payload: DevicePayload) -> int:
        """``scatter`` from the device's memory; returns the checksum of what was written, right or wrong."""
        raise NotImplementedError

    def read_slot(self, slot: int) -> memoryview | None:
        """Bytes of a filled slot in host memory; ``None`` where they are not what it was filled with.

        Any thread; neither a plan nor another thread fills the slot before the caller is done with them.
        """
        raise NotImplementedError

    def fill_slot(self, slot: int, content: bytes) -> None:
        """Fill a slot in host memory with bytes that ``read_slot`` gave; any thread, likewise."""
        raise NotImplementedError

    def probe(self) -> bytes:
        """Digest of what known tokens give, in memory that no plan has; the step thread's, between steps."""
        raise NotImplementedError

    def check_weights(self, max_bytes: int) -> WeightCheck:
        """Read about so much of the weights, where the last call ended, and compare; may run beside a step."""
        raise NotImplementedError

    @abstractmethod
    def load_adapter(self, files: AdapterFiles, is_pinned: Callable[[str], bool] = lambda _: False) -> None:
        """Load a checked adapter so that plans may name its digest; may run beside a step. Loading it again is a no-op.

        When every slot is taken the least recently used adapter whose digest is not ``is_pinned`` makes room; it is
        asked when that happens, from this thread: loading takes a while, and pins change.

        Raises:
            InvalidAdapter: its shapes do not fit this model.
            AdapterUnavailable: every slot is pinned.
        """

    @abstractmethod
    def resident_adapters(self) -> tuple[str, ...]:
        """Digests of the loaded adapters."""
