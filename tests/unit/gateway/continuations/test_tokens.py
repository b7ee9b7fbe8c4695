"""Continuation tokens: what is in them comes back, and no altered one, nor another tenant's, is taken."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratos.common.continuation_errors import InvalidContinuation
from stratos.core.requests.continuation import ContinuationState, left_open
from stratos.store.data_keys import Purpose
from stratos_gateway.continuations.settings import ContinuationsConfig
from stratos_gateway.continuations.tokens import ContinuationTokens
from tests.support.examples import examples

STATE = ContinuationState(
    answer_id="cmpl-1",
    choices=((left_open(0, [5, 300, 151_000], is_open=True), left_open(1, [9], is_open=False)),),
    seed=2**63 - 1,
    model_digest="sha256:model",
    adapter_digest="",
    binding="b" * 32,
    expires_unix_s=1_800_000_000,
)


def key_of(tenant_id: str, purpose: Purpose) -> bytes | None:
    return None if tenant_id == "keyless" else f"{purpose}{tenant_id}".encode().ljust(32, b".")[-32:]


def tokens(**config: int) -> ContinuationTokens:
    return ContinuationTokens(key_of, ContinuationsConfig(**config))


def test_a_token_is_the_same_each_time_and_gives_its_state_back() -> None:
    made = tokens().make("acme", STATE)
    assert made == tokens().make("acme", STATE)
    assert tokens().open("acme", made) == STATE
    assert replace(STATE, expires_unix_s=1).name == STATE.name
    assert replace(STATE, answer_id="cmpl-2").name != STATE.name
    longer = replace(STATE, choices=((left_open(0, [5, 300, 151_000, 7], is_open=True),),))
    assert longer.name != STATE.name


@settings(max_examples=examples(200))
@given(st.data())
def test_no_altered_token_is_taken(data: st.DataObject) -> None:
    made = tokens().make("acme", STATE)
    place = data.draw(st.integers(5, len(made) - 2))  # some bits of the last character mean nothing
    other = data.draw(st.sampled_from("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_=. é\0"))
    altered = made[:place] + other + made[place + 1 :]
    if altered != made:
        with pytest.raises(InvalidContinuation):
            tokens().open("acme", altered)


@pytest.mark.parametrize("text", ["", "cont_", "cont_AAAA", "x" * 100_000, "resp_0011", "cont_é"])
def test_what_was_never_a_token_is_refused(text: str) -> None:
    with pytest.raises(InvalidContinuation):
        tokens().open("acme", text)


def test_it_belongs_to_its_tenant_and_ends_with_its_key() -> None:
    made = tokens().make("acme", STATE)
    for tenant in ("other", "keyless"):
        with pytest.raises(InvalidContinuation):
            tokens().open(tenant, made)
    assert tokens().make("keyless", STATE) == ""
    assert not tokens().can_be_made("keyless")
    assert not tokens(kept_s=0).can_be_made("acme")
    assert not tokens(max_bytes=0).can_be_made("acme")


def test_a_longer_one_than_is_allowed_is_not_made() -> None:
    made = tokens().make("acme", STATE)
    assert tokens(max_bytes=len(made)).make("acme", STATE) == made
    assert tokens(max_bytes=len(made) - 1).make("acme", STATE) == ""


@pytest.mark.parametrize("num_tokens", [1, 7, 1000, 20_000])
def test_what_it_can_hold_is_made_whatever_the_tokens_are(num_tokens: int) -> None:
    longest = left_open(0, [2**21 - 1] * num_tokens, is_open=True)
    state = replace(STATE, choices=((longest,), (left_open(0, (), is_open=False),) * 30))
    most = next(size for size in range(0, 2**20, 256) if tokens(max_bytes=size).can_hold(num_tokens))
    assert tokens(max_bytes=most).make("acme", state)
    assert not tokens(max_bytes=most // 2).can_hold(num_tokens)


async def test_it_is_opened_in_any_thread_by_the_key_of_the_event_loop() -> None:
    made, threads = tokens().make("acme", STATE), list[int]()

    def own_key(tenant_id: str, purpose: Purpose) -> bytes | None:
        threads.append(threading.get_ident())
        return key_of(tenant_id, purpose)

    opening = ContinuationTokens(own_key, ContinuationsConfig()).opening_of("acme", made)
    assert await asyncio.to_thread(opening) == STATE
    assert threads == [threading.get_ident()]
