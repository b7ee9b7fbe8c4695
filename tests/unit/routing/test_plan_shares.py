"""What a plan leaves of a worker to others."""

from __future__ import annotations

from typing import Any

import pytest

from stratos.core.requests.terms import Share
from stratos.routing.admission import Ask
from tests.support.worlds.fleet_samples import make_request, make_view

BATCH = Share(max_batch_ratio=0.75, kv_headroom_ratio=0.2)


def ask(**changes: Any) -> Ask:
    return Ask(request=make_request(**changes), max_waiting_per_worker=2)


@pytest.mark.parametrize(("share", "num_free_slots"), [(BATCH, 6), (Share(), 10)])
def test_batch_slots_are_left_to_others(share: Share, num_free_slots: int) -> None:
    view = make_view(max_num_seqs=8)
    short = ask(share=share).num_slots_short(view)
    assert short == 1 - num_free_slots, "8 slots and 2 that wait, or 6"


def test_a_stream_that_has_begun_gets_back_in_like_any_other() -> None:
    view = make_view(max_num_seqs=8)
    moved = ask(share=BATCH, is_move=True)
    assert not moved.is_share_bound
    assert moved.num_slots_short(view) == ask().num_slots_short(view)
    assert ask(share=BATCH).surely_fits([view]) == [False]
    assert not ask(share=Share(weight=7)).is_share_bound


def test_headroom_counts_unless_the_request_would_never_fit_beside_it() -> None:
    total, size = make_view().status.engine.blocks.total, make_view().status.block_size
    mark = make_view().status.engine.kv_watermark
    part = {"num_prompt_tokens": int((mark - 0.7) * total) * size, "max_output_tokens_total": 1}
    used = make_view(num_promised_blocks=int(0.65 * total))
    assert ask(**part).num_blocks_short(used) <= 0 < ask(share=BATCH, **part).num_blocks_short(used)
    large = {"num_prompt_tokens": int((mark - 0.05) * total) * size, "max_output_tokens_total": 1}
    assert ask(share=BATCH, **large).num_blocks_short(make_view()) <= 0
