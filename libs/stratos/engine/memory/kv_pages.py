"""The KV pool: one tensor of pages, block-major across layers, and its conversion to and from the wire.

Layout ``[block, layer, 2 (K, V), kv_head, token in block, row]``: a block is one contiguous run over all layers.  A row
is ``head_dim`` numbers, or bytes of codes with their scale (``kv_codes``).  Where V is a part of K there is K alone, 1
in place of 2, in pages and on the wire.  ``gather`` and ``scatter`` may run in any thread, on blocks that no running
step writes.
Where a kernel wants K packed (``key_unit``), K of a head lies as ``[16 tokens, unit of head_dim, token, key_unit]`` in
the same bytes; V does not change, and what leaves or enters in wire layout is converted.  Of packed codes, those of 16
tokens come before their scales, and a unit of K is one code.
Pages start as zeros and never hold a non-finite value that a step wrote, so masked reads of stale tokens are harmless.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from stratos.common.errors import InvalidCheckpoint
from stratos.core.kv import KvGeometry, KvRange
from stratos.engine.contract.kv_groups import KvGroups
from stratos.engine.memory.copies import to_device
from stratos.engine.memory.huge_pages import zeroed_bytes
from stratos.engine.memory.kv_codes import KvCodes
from stratos.engine.memory.weight_memory import give_back
from stratos.engine.sizing.machine import read_machine

SMALL_PAGE_BYTES = 4096
KEY_GROUP = 16
"""Tokens of a block whose packed keys lie side by side; GROUP_KEYS of native/packed_keys.h."""


def num_blocks_for(geometry: KvGeometry, pool_bytes: int, groups: KvGroups | None = None) -> int:
    """Blocks that fit into ``pool_bytes``; of several pages they may be larger than their layers.

    Raises:
        InvalidCheckpoint: not a single one.
    """
    block_bytes = geometry.token_bytes * geometry.block_size
    if groups is not None:
        block_bytes = block_bytes // geometry.num_layers * groups.num_layers * groups.num_pages
    if pool_bytes < block_bytes:
        raise InvalidCheckpoint(
            f"kv_pool_bytes={pool_bytes} holds no KV block of this model; set it to a multiple of {block_bytes}"
        )
    return pool_bytes // block_bytes


class KvPages:
    """The pool, and its conversion.

    Args:
        geometry: of a token's KV.
        num_blocks: blocks of the pool.
        dtype: type of an element.
        device: where the pool lies.
        key_unit: elements that lie together in packed pages; 0 leaves rows of heads.
        codes: what rows hold, where they are bytes (``uint8``) of codes and scales.
        num_spare: blocks behind the pool, which no plan has.
    """

    def __init__(
        self,
        geometry: KvGeometry,
        num_blocks: int,
        dtype: torch.dtype,
        device: torch.device,
        key_unit: int = 0,
        codes: KvCodes | None = None,
        num_spare: int = 0,
    ) -> None:
        self.geometry, self.num_blocks, self.key_unit, self.codes = geometry, num_blocks, key_unit, codes
        self._num_layers, self._pages_per_block = geometry.num_layers, 1
        self._row = geometry.row_bytes // dtype.itemsize
        num_all = num_blocks + num_spare
        shape = (
            num_all,
            geometry.num_layers,
            geometry.num_sides,
            geometry.num_kv_heads,
            geometry.block_size,
            self._row,
        )
        num_bytes = num_all * geometry.token_bytes * geometry.block_size
        if device.type == "cpu":
            check_memory(num_bytes, "kv_pool_bytes")
        try:
            if device.type == "cpu":
                memory = zeroed_bytes(torch.Size(shape).numel() * dtype.itemsize)
                memory.numpy()[::SMALL_PAGE_BYTES] = 0  # taken now: too little memory shows here, not in a step
                self.tensor = memory.view(dtype).view(shape)
            else:
                self.tensor = torch.zeros(shape, dtype=dtype, device=device)
        except (RuntimeError, MemoryError) as error:
            raise InvalidCheckpoint(_too_little(num_bytes, "kv_pool_bytes")) from error

    def give_back(self) -> int:
        """Give the pool's memory back; returns how many bytes. Its address stays, on a CPU."""
        num_bytes = self.tensor.nbytes
        if self.tensor.device.type == "cpu":
            freed, flat = give_back(self.tensor), self.tensor.view(-1).view(torch.uint8)
            flat[:SMALL_PAGE_BYTES].zero_()  # pages of memory that are not all the pool's
            flat[-SMALL_PAGE_BYTES:].zero_()
            return freed
        self.tensor.untyped_storage().resize_(0)
        torch.cuda.empty_cache()  # what the model gave up before, too
        return num_bytes

    def take_again(self) -> None:
        """Take the pool's memory again, with zeros in it.

        Raises:
            InvalidCheckpoint: there is too little.
        """
        num_bytes = self.tensor.numel() * self.tensor.element_size()
        try:
            if self.tensor.device.type == "cpu":
                check_memory(num_bytes, "kv_pool_bytes")
                self.tensor.view(-1).view(torch.uint8).numpy()[::SMALL_PAGE_BYTES] = 0
            else:
                self.tensor.untyped_storage().resize_(num_bytes)
                self.tensor.zero_()
        except (RuntimeError, MemoryError) as error:
            raise InvalidCheckpoint(_too_little(num_bytes, "kv_pool_bytes")) from error

    @property
    def layout(self) -> str:
        """Meaning of a block's bytes; equal texts, equal layouts."""
        codes = "" if self.codes is None else self.codes.identity
        return f"{tuple(self.tensor.shape[1:])} {self.tensor.dtype} key unit {self.key_unit} {codes}"

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (source, destination) each; all sources are read before a destination is written."""
        pairs = to_device(np.array(copies, dtype=np.int64), self.tensor.device)
        pages = self.tensor.view(torch.uint8) if self.tensor.itemsize == 1 else self.tensor  # fp8 is bytes to torch
        pages.index_copy_(0, pairs[:, 1], pages.index_select(0, pairs[:, 0]))

    @torch.inference_mode()
    def gather(self, block_table: Sequence[int], kv_range: KvRange) -> memoryview:
        """Read KV in wire layout ``[layers, 2, kv_heads, tokens, row]``; the caller owns the bytes."""
        shape = self.wire_shape(block_table, kv_range)
        run = torch.empty(shape, dtype=self.tensor.dtype)
        for wire, page in self._pieces(block_table, kv_range, run):
            wire.copy_(page)
        return memoryview(run.view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]  # numpy hides the protocol

    @torch.inference_mode()
    def scatter(self, block_table: Sequence[int], kv_range: KvRange, payload: memoryview) -> None:
        """Write KV in wire layout into the pages.

        Raises:
            ValueError: ``payload`` does not have the size of the range.
        """
        run = self._opened(payload, self.wire_shape(block_table, kv_range))
        if run is None:
            return
        for wire, page in self._pieces(block_table, kv_range, run):
            page.copy_(wire)

    def wire_shape(self, block_table: Sequence[int], kv_range: KvRange) -> tuple[int, ...]:
        """``[layers, sides, kv_heads, tokens, row]`` of a range; ``ValueError`` where it is outside of the table."""
        geometry, num_blocks = self.geometry, len(block_table) // self._pages_per_block
        if not 0 <= kv_range.token_begin <= kv_range.token_end <= num_blocks * geometry.block_size:
            raise ValueError(f"the tokens of {kv_range} are outside of the block table")
        if not 0 <= kv_range.layer_begin <= kv_range.layer_end <= self._num_layers:
            raise ValueError(f"the layers of {kv_range} are outside of the model")
        return (kv_range.num_layers, geometry.num_sides, geometry.num_kv_heads, kv_range.num_tokens, self._row)

    def _opened(self, payload: memoryview, shape: tuple[int, ...]) -> Tensor | None:
        """A payload as a run of that shape; ``None`` for an empty one, ``ValueError`` for one of another size."""
        expected = torch.Size(shape).numel() * self.tensor.element_size()
        if payload.nbytes != expected:
            raise ValueError(f"the payload has {payload.nbytes} bytes, the range needs {expected}")
        if not expected:
            return None
        # torch takes writable memory only; the copy is of read-only payloads
        buffer = bytearray(payload) if payload.readonly else payload
        return torch.frombuffer(buffer, dtype=torch.uint8).view(self.tensor.dtype).view(shape)

    def _pieces(self, block_table: Sequence[int], kv_range: KvRange, run: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Views of equal shape, of the run in wire layout and of a page, piece by piece."""
        if self.codes and self.key_unit:
            yield from self._code_pieces(block_table, kv_range, run)
            return
        layers, size = slice(kv_range.layer_begin, kv_range.layer_end), self.geometry.block_size
        sides = slice(1, 2) if self.key_unit else slice(0, 2)
        for tokens, block, places in _places(block_table, kv_range, size, size):
            yield run[:, sides, :, tokens], self.tensor[block, layers, sides, :, places]
        if not self.key_unit:
            return
        # [layers, kv_heads, tokens, units]: a unit is copied as one word
        word = {2: torch.int16, 4: torch.int32}[self.key_unit * self.tensor.itemsize]
        keys, wire_keys = self.tensor.view(word)[:, layers, 0], run[:, 0].view(word)
        for tokens, block, places in _places(block_table, kv_range, size, KEY_GROUP):
            group = places.start - places.start % KEY_GROUP
            packed = keys[block, :, :, group : group + KEY_GROUP]
            packed = packed.view(*packed.shape[:2], -1, KEY_GROUP)
            yield wire_keys[:, :, tokens], packed[..., places.start - group : places.stop - group].transpose(2, 3)

    def _code_pieces(
        self, block_table: Sequence[int], kv_range: KvRange, run: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """``_pieces`` of packed codes: scales, V, K."""
        layers, dim = slice(kv_range.layer_begin, kv_range.layer_end), self.geometry.head_dim
        for tokens, block, places in _places(block_table, kv_range, self.geometry.block_size, KEY_GROUP):
            first = places.start % KEY_GROUP
            group, chosen = places.start - first, slice(first, first + places.stop - places.start)
            stored = self.tensor[block, layers, :, :, group : group + KEY_GROUP].flatten(3)
            codes, scales = stored[..., : KEY_GROUP * dim], stored[..., KEY_GROUP * dim :]
            wire, heads = run[:, :, :, tokens], (kv_range.num_layers, self.geometry.num_kv_heads)
            yield wire[..., dim:], scales.view(*scales.shape[:3], KEY_GROUP, -1)[:, :, :, chosen]
            yield wire[:, 1, ..., :dim], codes[:, 1].view(*heads, KEY_GROUP, dim)[:, :, chosen]
            yield wire[:, 0, ..., :dim], codes[:, 0].view(*heads, dim, KEY_GROUP)[..., chosen].transpose(2, 3)


def _places(block_table: Sequence[int], kv_range: KvRange, size: int, step: int) -> Iterator[tuple[slice, int, slice]]:
    """Cut a range where multiples of ``step`` begin: tokens of the run, block, tokens of the block."""
    position = kv_range.token_begin
    # blocks and steps of 16, tokens 21 to 40: block 1 from place 5 (11 tokens, 0 to 11 of the run), block 2 (11 to 19)
    while position < kv_range.token_end:
        index, offset = divmod(position, size)
        count = min(step - offset % step, kv_range.token_end - position)
        begin = position - kv_range.token_begin
        yield slice(begin, begin + count), block_table[index], slice(offset, offset + count)
        position += count


def check_memory(num_bytes: int, setting: str) -> None:
    """Refuse a pool larger than what is left here: the kernel would kill the process later instead."""
    available = read_machine().available_bytes
    if available and num_bytes > available:
        raise InvalidCheckpoint(_too_little(num_bytes, setting))


def _too_little(num_bytes: int, setting: str) -> str:
    return f"the KV pool of {num_bytes} bytes does not fit into this machine's memory; lower {setting}"
