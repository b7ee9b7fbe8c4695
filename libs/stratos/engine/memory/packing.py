"""KV between pages and the wire's layout by torch: the kernel's reference, and its stand-in for odd sizes of a head."""

from __future__ import annotations

import torch
from torch import Tensor

from stratos.core.device.checksum import FIRST, PLACE, SECOND, SHIFT, WORD_BYTES


def pack(pages: Tensor, blocks: Tensor, first_token: int, wire: Tensor, layer_begin: int) -> None:
    """Copy a range of KV out of the pages.

    Args:
        pages: [blocks, layers, 2, kv_heads, block, head_dim].
        blocks: integers, table of the blocks that hold the range.
        first_token: place of the range's first token in the first of ``blocks``.
        wire: [layers, 2, kv_heads, tokens, head_dim], of the type of ``pages``.
        layer_begin: first layer.
    """
    at_block, at_token = _places(pages, blocks, first_token, wire)
    layers = pages[:, layer_begin : layer_begin + wire.shape[0]]
    wire.copy_(layers[at_block, :, :, :, at_token].permute(1, 2, 3, 0, 4))


def unpack(pages: Tensor, blocks: Tensor, first_token: int, wire: Tensor, layer_begin: int) -> None:
    """Copy a range of KV into the pages; arguments as ``pack``."""
    at_block, at_token = _places(pages, blocks, first_token, wire)
    layers = pages[:, layer_begin : layer_begin + wire.shape[0]]
    layers[at_block, :, :, :, at_token] = wire.permute(3, 0, 1, 2, 4)


def sum_of_mixed(run: Tensor) -> Tensor:
    """int64 [1] of a contiguous run that is not empty; ``checksum.finish`` makes the checksum of it."""
    data = run.view(-1).view(torch.uint8)
    words = torch.nn.functional.pad(data, (0, -data.numel() % WORD_BYTES)).view(torch.int64)
    value = words + torch.arange(1, words.numel() + 1, device=words.device) * _signed(PLACE)
    for factor in (FIRST, SECOND):
        value = (value ^ _shifted(value)) * _signed(factor)
    return (value ^ _shifted(value)).sum().view(1)


def _places(pages: Tensor, blocks: Tensor, first_token: int, wire: Tensor) -> tuple[Tensor, Tensor]:
    tokens = torch.arange(first_token, first_token + wire.shape[3], device=pages.device)
    size = pages.shape[4]
    return blocks.long()[tokens // size], tokens % size


def _shifted(value: Tensor) -> Tensor:
    """The sign does not move in: torch has no unsigned shift."""
    return (value >> SHIFT) & ((1 << (64 - SHIFT)) - 1)


def _signed(factor: int) -> int:
    return factor - (1 << 64)
