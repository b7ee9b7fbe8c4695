"""The KV pool: wire layout, partial blocks, bounds and memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from stratos.common.errors import InvalidCheckpoint
from stratos.core.kv import KvGeometry, KvRange
from stratos.engine.memory.kv_codes import KV_CODES
from stratos.engine.memory.kv_pages import KvPages, num_blocks_for

GEOMETRY = KvGeometry(num_layers=3, num_kv_heads=2, head_dim=4, block_size=4, element_bytes=4)
TABLE = (5, 2, 7, 0)


def make_pages(dtype: torch.dtype = torch.float32) -> KvPages:
    return KvPages(GEOMETRY, 8, dtype, torch.device("cpu"))


def payload_of(num_layers: int, num_tokens: int) -> np.ndarray:
    shape = (num_layers, 2, 2, num_tokens, 4)
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1


@pytest.mark.parametrize(("begin", "end"), [(0, 16), (3, 5), (4, 8), (1, 15), (6, 6)])
@pytest.mark.parametrize(("first", "last"), [(0, 3), (1, 2)])
def test_what_is_scattered_is_gathered_and_nothing_else_changes(begin: int, end: int, first: int, last: int) -> None:
    pages, sent = make_pages(), payload_of(last - first, end - begin)
    pages.scatter(TABLE, KvRange(begin, end, first, last), memoryview(sent.tobytes()))
    assert bytes(pages.gather(TABLE, KvRange(begin, end, first, last))) == sent.tobytes()
    assert int((pages.tensor != 0).sum()) == sent.size


def test_the_wire_layout_is_layer_kv_head_token_dim() -> None:
    pages, sent = make_pages(), payload_of(3, 16)
    pages.scatter(TABLE, KvRange(0, 16, 0, 3), memoryview(sent.tobytes()))
    for layer, kv, head, token in ((0, 0, 0, 0), (2, 1, 1, 15), (1, 0, 1, 6)):
        stored = pages.tensor[TABLE[token // 4], layer, kv, head, token % 4]
        assert stored.tolist() == sent[layer, kv, head, token].tolist()
    part = np.frombuffer(pages.gather(TABLE, KvRange(2, 7, 1, 2)), dtype=np.float32).reshape(1, 2, 2, 5, 4)
    assert np.array_equal(part, sent[1:2, :, :, 2:7])


def test_bfloat16_travels_bit_for_bit() -> None:
    source, target = make_pages(torch.bfloat16), make_pages(torch.bfloat16)
    source.tensor.copy_(torch.randn(source.tensor.shape))
    target.scatter((1, 3), KvRange(1, 6, 0, 3), source.gather((4, 6), KvRange(1, 6, 0, 3)))
    assert torch.equal(target.tensor[1, :, :, :, 1:], source.tensor[4, :, :, :, 1:])
    assert torch.equal(target.tensor[3, :, :, :, :2], source.tensor[6, :, :, :, :2])


PACKED_GEOMETRY = KvGeometry(num_layers=3, num_kv_heads=2, head_dim=6, block_size=32, element_bytes=2)


@pytest.mark.parametrize("unit", [1, 2])
@pytest.mark.parametrize(("begin", "end"), [(0, 96), (3, 5), (13, 49), (16, 32), (31, 33), (40, 96)])
@pytest.mark.parametrize(("first", "last"), [(0, 3), (1, 2)])
def test_packed_keys_leave_and_enter_as_plain_ones(begin: int, end: int, first: int, last: int, unit: int) -> None:
    plain, packed = (KvPages(PACKED_GEOMETRY, 8, torch.bfloat16, torch.device("cpu"), form) for form in (0, unit))
    plain.tensor.copy_(torch.randn(plain.tensor.shape))
    whole, part = KvRange(0, 96, 0, 3), KvRange(begin, end, first, last)
    packed.scatter((5, 2, 7), whole, plain.gather((5, 2, 7), whole))
    assert bytes(packed.gather((5, 2, 7), part)) == bytes(plain.gather((5, 2, 7), part))
    for pages in (plain, packed):
        pages.scatter((5, 2, 7), part, memoryview(bytes(len(pages.gather((5, 2, 7), part).cast("B")))))
    assert bytes(packed.gather((5, 2, 7), whole)) == bytes(plain.gather((5, 2, 7), whole))
    assert int((packed.tensor != 0).sum()) == int((plain.tensor[[5, 2, 7]] != 0).sum())


@pytest.mark.parametrize("unit", [1, 2])
@pytest.mark.parametrize(("begin", "end"), [(0, 96), (3, 5), (4, 5), (13, 49), (31, 33)])
def test_packed_codes_leave_and_enter_as_plain_ones(begin: int, end: int, unit: int) -> None:
    geometry = replace(PACKED_GEOMETRY, element_bytes=1, scale_bytes=2)
    plain, packed = (
        KvPages(geometry, 8, torch.uint8, torch.device("cpu"), form, codes=KV_CODES["int8"]) for form in (0, unit)
    )
    plain.tensor.random_(1, 255)
    whole, part = KvRange(0, 96, 0, 3), KvRange(begin, end, 1, 3)
    packed.scatter((5, 2, 7), whole, plain.gather((5, 2, 7), whole))
    assert bytes(packed.gather((5, 2, 7), part)) == bytes(plain.gather((5, 2, 7), part))
    for pages in (plain, packed):
        pages.scatter((5, 2, 7), part, memoryview(bytes(len(pages.gather((5, 2, 7), part).cast("B")))))
    assert bytes(packed.gather((5, 2, 7), whole)) == bytes(plain.gather((5, 2, 7), whole))
    assert int((packed.tensor != 0).sum()) == int((plain.tensor[[5, 2, 7]] != 0).sum())


def test_packed_keys_lie_side_by_side() -> None:
    pages = KvPages(PACKED_GEOMETRY, 2, torch.bfloat16, torch.device("cpu"), 2)
    sent = torch.arange(3 * 2 * 2 * 32 * 6).remainder(251).bfloat16().view(3, 2, 2, 32, 6)
    pages.scatter((1,), KvRange(0, 32, 0, 3), memoryview(sent.view(torch.uint8).numpy().tobytes()))
    stored = pages.tensor[1].flatten(3)  # [layer, 2, kv_head, 32 * 6]
    for layer, head, token, dim in ((0, 0, 0, 0), (2, 1, 17, 5), (1, 0, 15, 2), (1, 1, 31, 3)):
        # [16 tokens, unit of 2, token, 2]
        place = ((token // 16 * 3 + dim // 2) * 16 + token % 16) * 2 + dim % 2
        assert stored[layer, 0, head, place] == sent[layer, 0, head, token, dim]
    assert torch.equal(pages.tensor[1, :, 1], sent[:, 1])


def test_a_payload_of_wrong_size_or_a_range_outside_is_refused() -> None:
    pages = make_pages()
    with pytest.raises(ValueError, match="the range needs"):
        pages.scatter(TABLE, KvRange(0, 4, 0, 1), memoryview(bytes(8)))
    for begin, end, first, last in ((0, 17, 0, 1), (5, 4, 0, 1), (-1, 2, 0, 1), (0, 4, 2, 4)):
        with pytest.raises(ValueError, match="outside of"):
            pages.gather(TABLE, KvRange(begin, end, first, last))


def test_copies_read_all_sources_before_writing() -> None:
    pages = make_pages()
    pages.tensor.copy_(torch.arange(8).view(8, 1, 1, 1, 1, 1).expand(pages.tensor.shape))
    pages.copy_blocks([(1, 2), (2, 3)])
    assert [int(pages.tensor[b].max()) for b in (1, 2, 3)] == [1, 1, 2]


def test_the_pool_size_gives_the_number_of_blocks_or_a_clear_error() -> None:
    block_bytes = GEOMETRY.token_bytes * 4
    assert num_blocks_for(GEOMETRY, 10 * block_bytes + 5) == 10
    with pytest.raises(InvalidCheckpoint, match=str(block_bytes)):
        num_blocks_for(GEOMETRY, block_bytes - 1)
    with pytest.raises(InvalidCheckpoint, match="lower kv_pool_bytes"):
        KvPages(GEOMETRY, 1 << 40, torch.float32, torch.device("cpu"))
