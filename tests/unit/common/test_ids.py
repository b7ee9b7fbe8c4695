"""Random draws: each is used once, by whichever thread."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from stratos.common import ids
from stratos.common.ids import new_id, new_nonce, new_seed


def test_no_draw_is_used_twice_by_any_thread() -> None:
    with ThreadPoolExecutor(4) as pool:
        found = [nonce for part in pool.map(lambda _: [new_nonce() for _ in range(2000)], range(4)) for nonce in part]
    assert len(set(found)) == len(found) == 8000
    assert {len(nonce) for nonce in found} == {16}


def test_the_system_is_asked_once_for_many_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, ask = list[int](), os.urandom
    monkeypatch.setattr(os, "urandom", lambda size: (asked.append(size), ask(size))[1])
    ids.drawn.clear()
    for _ in range(100):
        new_id("req"), new_seed(), new_nonce()
    assert sum(asked) <= 2 * 4096


def test_names_and_seeds_have_their_forms() -> None:
    assert len(new_id("req")) == len("req-") + 24
    assert 0 <= new_seed() < 2**63
