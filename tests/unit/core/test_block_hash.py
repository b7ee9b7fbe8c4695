"""Hashes of KV blocks: vectors computed from the bytes that the module's text names, and what changes a chain."""

from __future__ import annotations

import dataclasses

import pytest

from stratos.core.block_hash import block_hashes, chain_root
from stratos.core.kv import KvIdentity

IDENTITY = KvIdentity(model_digest="model", kv_dtype="bf16", rope_variant="plain", numerics_id="any")
ROOT_HASH = "554d85e98b935479d978b415f3beeda00400490b6d6405317eae7b5e772172ee"
BLOCKS = [
    "64647478ab71b635d926a3f395adf0708f15108bf4fd7fd69de755dd448aae9f",
    "0a656d46daaf7d8657d901c66031fd11db9711d0201d7186a5ee99ac952c3287",
]
TOKENS = [1, 2, 3, 4, 2**16, 2**32 - 1]


def test_a_known_chain() -> None:
    root = chain_root(IDENTITY, "", b"salt")
    assert root.hex() == ROOT_HASH
    assert [block.hex() for block in block_hashes(root, TOKENS, 3)] == BLOCKS


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (2, 0), (3, 1), (5, 1), (6, 2)])
def test_only_full_blocks_have_a_hash(num_tokens: int, num_blocks: int) -> None:
    hashes = block_hashes(bytes.fromhex(ROOT_HASH), TOKENS[:num_tokens], 3)
    assert [block.hex() for block in hashes] == BLOCKS[:num_blocks]


def test_a_chain_continues_from_any_block() -> None:
    assert [block.hex() for block in block_hashes(bytes.fromhex(BLOCKS[0]), TOKENS[3:], 3)] == BLOCKS[1:]


def test_a_token_changes_its_block_and_all_after_it() -> None:
    root, changed = bytes.fromhex(ROOT_HASH), [1, 2, 3, 4, 9, 6, 7, 8, 9]
    plain = block_hashes(root, [1, 2, 3, 4, 5, 6, 7, 8, 9], 3)
    assert [a == b for a, b in zip(plain, block_hashes(root, changed, 3), strict=True)] == [True, False, False]


def test_every_part_of_the_identity_separates_chains_except_numerics() -> None:
    roots = {
        chain_root(IDENTITY, "", b"salt"),
        chain_root(IDENTITY, "adapter", b"salt"),
        chain_root(IDENTITY, "", b"other"),
        *(
            chain_root(dataclasses.replace(IDENTITY, **{name: "other"}), "", b"salt")
            for name in ("model_digest", "kv_dtype", "rope_variant")
        ),
    }
    assert len(roots) == 6
    assert chain_root(dataclasses.replace(IDENTITY, numerics_id="other"), "", b"salt").hex() == ROOT_HASH


def test_bytes_cannot_move_from_one_field_to_the_next() -> None:
    short = dataclasses.replace(IDENTITY, model_digest="ab")
    long = dataclasses.replace(IDENTITY, model_digest="abc")
    assert chain_root(short, "cd", b"") != chain_root(long, "d", b"")
