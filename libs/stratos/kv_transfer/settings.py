"""Configuration of the KV transports of one process; a worker's settings hold ``TransportConfig``."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval, MinLen

MIB = 1 << 20
SLOT_TOKENS, SLOT_UNIT_BYTES = 128, MIB // 16
LEAST_SLOT_BYTES, MOST_SLOT_BYTES, MOST_RING_BYTES = MIB, 16 * MIB, 128 * MIB
"""Of slots that follow the model. On a H100 the first token of a 512-token prompt of an 8B model (64 MiB of KV) came
after 139 ms by slots of 1 MiB, 54 ms by 16 MiB, 51 ms by 64 MiB; without a hand-off after 31 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingConfig:
    """Size of the staging memory of a transport; at most ``slot_bytes * slots_per_pair * max_pairs``, taken lazily."""

    slot_bytes: Annotated[int, Interval(ge=0)] = 0
    """Largest frame; a prompt chunk above it becomes several frames. Each frame costs its ends a message, larger ones
    mean later overlap. 0 follows the model: the KV of 128 tokens, from 1 to 16 MiB."""
    slots_per_pair: Annotated[int, Interval(ge=1, le=4096)] = 16
    """Staging slots per source, and so hand-offs that one source can have granted at once. Where slot_bytes follow the
    model they are fewer, so that they take 128 MiB at most."""
    max_pairs: Annotated[int, Ge(1)] = 64
    """Sources at once; the least recently opened idle one makes room."""

    def fitted(self, token_bytes: int, state_layer_bytes: int = 0) -> StagingConfig:
        """Slots as they are set, or for a model of which a token's KV, and a layer's state, take so many bytes."""
        if self.slot_bytes:
            return self
        wanted = -(-max(SLOT_TOKENS * token_bytes, state_layer_bytes) // SLOT_UNIT_BYTES) * SLOT_UNIT_BYTES
        slot_bytes = min(max(wanted, LEAST_SLOT_BYTES), MOST_SLOT_BYTES)
        slots = min(self.slots_per_pair, MOST_RING_BYTES // slot_bytes)
        return replace(self, slot_bytes=slot_bytes, slots_per_pair=slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class GlooConfig:
    """Where to listen and how long to wait."""

    host: str = "127.0.0.1"
    """Address that the Gloo transport listens on; peers must reach it, and nothing listens on another one."""
    timeout_s: Annotated[float, Gt(0)] = 10.0
    """Bounds the rendezvous, and every frame once announced; passing it breaks the pair."""

    @property
    def timeout(self) -> timedelta:
        """``timeout_s`` as torch takes it."""
        return timedelta(seconds=self.timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclConfig:
    """Where to meet, and on which device."""

    host: str = "127.0.0.1"
    """Address that a pair's store listens on; NCCL chooses its own for payloads (NCCL_SOCKET_IFNAME)."""
    device: Annotated[int, Ge(0)] = 0
    """GPU of this process, as CUDA numbers those that it sees."""
    timeout_s: Annotated[float, Gt(0)] = 10.0
    """Bounds the rendezvous, and every frame once announced; passing it breaks the pair."""

    @property
    def timeout(self) -> timedelta:
        """``timeout_s`` as torch takes it."""
        return timedelta(seconds=self.timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaIpcConfig:
    """Which device, and how long to wait."""

    device: Annotated[int, Ge(0)] = 0
    """GPU of this process, as CUDA numbers those that it sees."""
    timeout_s: Annotated[float, Gt(0)] = 10.0
    """Bounds the exchange of handles."""
    max_pairs: Annotated[int, Ge(1)] = 8
    """Sources at once, if staging.max_pairs is not less. The plan of the GPU's memory leaves room for twice as many
    rings of slot_bytes * slots_per_pair each: ended pairs keep theirs until their sources have unmapped it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsTransportConfig:
    """Where to listen with mTLS on, and how long to wait."""

    host: str = "127.0.0.1"
    """Address that the TLS transport listens on, and that the other workers dial."""
    port: Annotated[int, Interval(ge=0, le=65535)] = 0
    """One port for all sources; 0 takes a free one."""
    timeout_s: Annotated[float, Gt(0)] = 10.0
    """Bounds a handshake, and every frame once announced; passing it breaks the pair."""
    rekey_bytes: Annotated[int, Ge(1024 * 1024)] = 64 * 1024**3
    """A connection is made again after this many bytes: AES-GCM is safe for some 350 GiB under one key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportConfig:
    """Which transports a process speaks, and what each of them needs."""

    names: Annotated[tuple[Literal["cuda_ipc", "shm", "tls", "gloo", "nccl"], ...], MinLen(1)] = ("shm", "tls", "gloo")
    """KV transports, best first; shm is for workers of one host, tls needs mTLS, and with mTLS gloo is left out. nccl
    needs a GPU in every worker; cuda_ipc needs workers of one host, on one GPU or on two that reach each other's
    memory, and staging.slot_bytes a multiple of 16."""
    allow_unencrypted_gloo: bool = False
    """Take gloo with mTLS on, too: KV is then readable on the network, and any process there may send some."""
    allow_unencrypted_nccl: bool = False
    """Take nccl with mTLS on, too: the same risk."""
    shm_directory: Path = Path(f"/dev/shm/stratos-{os.getuid()}")  # noqa: S108 - the transport checks owner and mode
    """Private directory of the transports shm and cuda_ipc; the same for all workers of a host."""
    idle_pair_s: Annotated[float, Ge(0)] = 300.0
    """A pair of workers that no hand-off needed for so long, or up to twice that, is ended by its receiver, after four
    or five times that by its source; the next one opens it within milliseconds. 0 keeps it. The same at all workers."""
    staging: StagingConfig = field(default_factory=StagingConfig)
    gloo: GlooConfig = field(default_factory=GlooConfig)
    tls: TlsTransportConfig = field(default_factory=TlsTransportConfig)
    nccl: NcclConfig = field(default_factory=NcclConfig)
    cuda_ipc: CudaIpcConfig = field(default_factory=CudaIpcConfig)

    def fitted(self, token_bytes: int, state_layer_bytes: int = 0) -> TransportConfig:
        """This configuration with the slots of a model, as ``StagingConfig.fitted``."""
        return replace(self, staging=self.staging.fitted(token_bytes, state_layer_bytes))
