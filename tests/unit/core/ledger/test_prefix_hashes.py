"""Hashes of prompts' beginnings: what two of them share to the block, and nothing without the tenant's key."""

from __future__ import annotations

import pytest

from stratos.core.ledger.prefix_hashes import PREFIX_TOKENS, prefix_hashes, prefix_root, split_prefix_hashes

KEY = bytes(range(32))
ROOT = prefix_root(KEY, b"salt", "model", "")
PROMPT = tuple(range(4 * PREFIX_TOKENS))


def hashes(prompt: tuple[int, ...], root: bytes = ROOT, most: int = 64) -> list[str]:
    return split_prefix_hashes(prefix_hashes(root, prompt, most))


def test_they_never_change_or_days_would_not_be_told_to_share() -> None:
    assert hashes(PROMPT) == ["HuZXWb5S", "Y+hZ26Nk", "f4oP0l8S", "I3E6Lo4r"], "as the bytes of the text above give"


@pytest.mark.parametrize("num_shared", [0, 511, 512, 1024, 1030, 1535])
def test_two_prompts_share_the_hashes_of_the_blocks_that_are_equal_from_the_first_token_on(num_shared: int) -> None:
    first = hashes(PROMPT)
    other = hashes((*PROMPT[:num_shared], 99_999, *PROMPT[num_shared + 1 :]))
    assert [one == two for one, two in zip(first, other, strict=True)] == [
        number < num_shared // PREFIX_TOKENS for number in range(4)
    ]


@pytest.mark.parametrize(
    ("num_tokens", "most", "num"), [(511, 64, 0), (512, 64, 1), (1535, 64, 2), (2048, 3, 3), (600, 0, 0)]
)
def test_full_blocks_have_one_up_to_a_bound(num_tokens: int, most: int, num: int) -> None:
    assert hashes(PROMPT[:num_tokens], most=most) == hashes(PROMPT)[:num]


@pytest.mark.parametrize(
    "other",
    [
        prefix_root(KEY[::-1], b"salt", "model", ""),
        prefix_root(KEY, b"another", "model", ""),
        prefix_root(KEY, b"salt", "other", ""),
        prefix_root(KEY, b"salt", "model", "adapter"),
        prefix_root(KEY, b"saltmodel", "", ""),
    ],
)
def test_nothing_is_shared_between_tenants_salts_models_and_adapters(other: bytes) -> None:
    assert not set(hashes(PROMPT)) & set(hashes(PROMPT, other))
