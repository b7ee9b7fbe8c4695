"""The laws of the ledgers, and the arithmetic of ranges and sizes."""

from __future__ import annotations

from typing import Any

import pytest

from stratos.core.kv import BlockLedger, HostLedger, KvGeometry, KvIdentity, KvRange, StagingLedger

SOUND: list[Any] = [
    BlockLedger(total=15, free=1, cached=2, allocated=3, reserved=4, fenced=5),
    HostLedger(total=10, free=1, cached=2, held=3, moving=4),
    HostLedger(),
    StagingLedger(total=6, free=1, granted=2, quarantined=3),
    StagingLedger(),
]
BROKEN: list[tuple[Any, str]] = [
    (BlockLedger(total=16, free=1, cached=2, allocated=3, reserved=4, fenced=5), "block ledger law"),
    (BlockLedger(total=15, free=1, cached=2, allocated=3, reserved=4, fenced=6), "block ledger law"),
    (HostLedger(total=9, free=1, cached=2, held=3, moving=4), "host ledger law"),
    (HostLedger(total=1, free=2, cached=-1), "negative host count"),
    (StagingLedger(total=7, free=1, granted=2, quarantined=3), "staging ledger law"),
    (StagingLedger(total=1, free=2, granted=-1), "negative staging count"),
]


@pytest.mark.parametrize("ledger", SOUND, ids=repr)
def test_a_ledger_that_adds_up_passes(ledger: Any) -> None:
    ledger.check_law()


@pytest.mark.parametrize(("ledger", "message"), BROKEN, ids=repr)
def test_a_ledger_that_does_not_add_up_is_refused(ledger: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        ledger.check_law()


def test_staging_ledgers_add_up_count_by_count() -> None:
    both = StagingLedger(6, 1, 2, 3) + StagingLedger(60, 10, 20, 30)
    assert both == StagingLedger(66, 11, 22, 33)
    both.check_law()


@pytest.mark.parametrize(
    ("kv_range", "counts"),
    [
        (KvRange(2, 7, 1, 4), (5, 3, 15)),
        (KvRange(2, 2, 0, 4), (0, 4, 0)),
        (KvRange(7, 2, 4, 1), (0, 0, 0)),
    ],
)
def test_a_range_counts_tokens_layers_and_cells(kv_range: KvRange, counts: tuple[int, int, int]) -> None:
    assert (kv_range.num_tokens, kv_range.num_layers, kv_range.num_cells) == counts


def test_bytes_of_a_token_and_of_a_range() -> None:
    geometry = KvGeometry(num_layers=4, num_kv_heads=2, head_dim=8, block_size=16, element_bytes=2)
    assert geometry.token_bytes == 4 * 2 * 2 * 8 * 2 == 256
    assert geometry.num_bytes(KvRange(0, 16, 0, 4)) == 16 * 256
    assert geometry.num_bytes(KvRange(3, 5, 1, 2)) == 2 * 64
    assert geometry.num_bytes(KvRange(5, 3, 0, 4)) == 0


@pytest.mark.parametrize(
    ("mine", "theirs", "misfit"),
    [
        ("cpu/f/a.r1+exact", "cpu/f/a.r1+exact", None),
        ("cpu/f/a.r1+exact", "cpu/f/a.r2+exact", "numerics_id"),
        ("cpu/f/a.r1+exact+threads-1", "cpu/f/a.r1+exact+threads-2", "numerics_id"),
        ("cpu/f/a.r1+exact", "cpu/f/a.r1+batched", "numerics_id"),
        ("cuda-H100/f/a.r1+batched", "cuda-H200/f/b.r3+batched", None),
        ("one", "another", "numerics_id"),
    ],
)
def test_numerics_must_be_equal_where_either_promises_exact_bits(mine: str, theirs: str, misfit: str | None) -> None:
    one, other = (
        KvIdentity(model_digest="m", kv_dtype="f", rope_variant="r", numerics_id=numerics)
        for numerics in (mine, theirs)
    )
    assert one.misfit(other) == other.misfit(one) == misfit
    moved = KvIdentity(model_digest="m", kv_dtype="f", rope_variant="other", numerics_id=theirs)
    assert one.misfit(moved) == "rope_variant"
