"""KV as the code sees it that holds or moves it: its identity, its shape, and the ledgers of blocks and slots."""

from __future__ import annotations

from dataclasses import dataclass, fields

BATCHED = "batched"
"""End of a numerics id that promises nothing about the last bits: a batch may change them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvIdentity:
    """Identity of KV: what must be equal before it may move between two workers.

    The numerics must be only where one of the two promises exact bits.  Where none does, KV of one is as good as that
    of the other: a batch changes as many bits as another kernel.
    """

    model_digest: str
    kv_dtype: str
    rope_variant: str
    numerics_id: str
    protocol_version: int = 1

    @property
    def is_exact(self) -> bool:
        """A token's bits are a function of its context and the weights."""
        return promises_exact(self.numerics_id)

    def misfit(self, other: KvIdentity) -> str | None:
        """Name of the first field that keeps KV from moving between the two."""
        if self == other:
            return None
        differing = [field.name for field in fields(self) if getattr(self, field.name) != getattr(other, field.name)]
        if not (self.is_exact or other.is_exact) and "numerics_id" in differing:
            differing.remove("numerics_id")
        return next(iter(differing), None)


def promises_exact(numerics_id: str) -> bool:
    """Whether what computed under this id gives the same bits again."""
    return numerics_id.rpartition("+")[2] != BATCHED


@dataclass(frozen=True, slots=True)
class KvRange:
    """KV of tokens [token_begin, token_end) in layers [layer_begin, layer_end)."""

    token_begin: int
    token_end: int
    layer_begin: int
    layer_end: int

    @property
    def num_tokens(self) -> int:
        """0 for a range whose ends are the wrong way round."""
        return max(0, self.token_end - self.token_begin)

    @property
    def num_layers(self) -> int:
        """0 for a range whose ends are the wrong way round."""
        return max(0, self.layer_end - self.layer_begin)

    @property
    def num_cells(self) -> int:
        """Number of (token, layer) pairs."""
        return self.num_tokens * self.num_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class KvGeometry:
    """Shape of the KV cache; may differ between workers, the sender converts."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    element_bytes: int
    scale_bytes: int = 0
    """Scale behind the numbers of a head of a token, of K and V each."""
    num_sides: int = 2
    """K and V; 1: K alone, of which V is a part (latent attention)."""
    num_state_layers: int = 0
    """Layers that have a state of fixed size for each sequence, and no KV. In a range they come behind the others."""
    state_layer_bytes: int = 0
    """Bytes of one sequence's state in one of them."""
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's KV over all layers and heads."""
        return self.num_layers * self.num_sides * self.num_kv_heads * self.row_bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's K, or V, of one head and layer."""
        return self.head_dim * self.element_bytes + self.scale_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of one sequence's state in all layers that have one."""
        return self.num_state_layers * self.state_layer_bytes

    def is_state(self, kv_range: KvRange) -> bool:
        """The range is of states: those after its only token, in layers counted from ``num_layers`` on."""
        end = self.num_layers + self.num_state_layers
        return self.num_layers <= kv_range.layer_begin < kv_range.layer_end <= end and kv_range.num_tokens == 1

    def num_bytes(self, kv_range: KvRange) -> int:
        """Bytes of a range with all heads, or of states."""
        if self.is_state(kv_range):
            return kv_range.num_layers * self.state_layer_bytes
        return kv_range.num_cells * (self.token_bytes // self.num_layers)


@dataclass(frozen=True, slots=True)
class BlockLedger:
    """Counts of KV blocks; the law is ``free + cached + allocated + reserved + fenced == total``."""

    total: int
    free: int
    cached: int
    allocated: int
    reserved: int
    fenced: int

    def check_law(self) -> None:
        """Raise ``AssertionError`` if the law is broken."""
        counted = self.free + self.cached + self.allocated + self.reserved + self.fenced
        assert counted == self.total, f"block ledger law broken: {self}"


@dataclass(frozen=True, slots=True)
class HostLedger:
    """Counts of blocks in host memory; the law is ``free + cached + held + moving == total``."""

    total: int = 0
    free: int = 0
    cached: int = 0
    held: int = 0
    moving: int = 0

    def check_law(self) -> None:
        """Raise ``AssertionError`` if the law is broken."""
        assert min(self.total, self.free, self.cached, self.held, self.moving) >= 0, f"negative host count: {self}"
        assert self.free + self.cached + self.held + self.moving == self.total, f"host ledger law broken: {self}"


@dataclass(frozen=True, slots=True)
class DiskLedger:
    """Counts of blocks on disk; the law is ``0 <= stored <= total``."""

    total: int = 0
    """Blocks that the bound of its bytes holds."""
    stored: int = 0

    def check_law(self) -> None:
        """Raise ``AssertionError`` if the law is broken."""
        assert 0 <= self.stored <= self.total, f"disk ledger law broken: {self}"


@dataclass(frozen=True, slots=True)
class StagingLedger:
    """Counts of staging slots; the law is ``free + granted + quarantined == total``."""

    total: int = 0
    free: int = 0
    granted: int = 0
    quarantined: int = 0

    def check_law(self) -> None:
        """Raise ``AssertionError`` if the law is broken."""
        assert min(self.total, self.free, self.granted, self.quarantined) >= 0, f"negative staging count: {self}"
        assert self.free + self.granted + self.quarantined == self.total, f"staging ledger law broken: {self}"

    def __add__(self, other: StagingLedger) -> StagingLedger:
        return StagingLedger(
            self.total + other.total,
            self.free + other.free,
            self.granted + other.granted,
            self.quarantined + other.quarantined,
        )
