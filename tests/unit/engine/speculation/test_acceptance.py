"""The meter of acceptance, and that the bound of drafts with the same noise holds."""

from __future__ import annotations

import numpy as np
import pytest

from stratos.core.requests.records import RequestKey
from stratos.engine.contract.results import DraftCount
from stratos.engine.speculation.acceptance import measure_acceptance_rate, total_variation


def count(num_drafted: int, num_accepted: int) -> DraftCount:
    return DraftCount(key=RequestKey("r", 0), method="draft", num_drafted=num_drafted, num_accepted=num_accepted)


def test_places_are_counted_apart_and_what_was_not_reached_judges_no_model():
    found = measure_acceptance_rate([count(3, 3), count(3, 1), count(1, 0), count(0, 0)])
    assert (found.drafted, found.accepted) == ((3, 2, 2), (2, 1, 1))
    assert found.by_place == (2 / 3, 0.5, 0.5)
    assert found.rate == 4 / (3 + 2 + 1)
    assert (found.verdict, found.same_noise, found.rejection) == ("fair", None, None)


@pytest.mark.parametrize(("accepted", "verdict"), [(8, "good"), (6, "fair"), (4, "poor"), (0, "poor")])
def test_a_verdict_is_one_word(accepted: int, verdict: str):
    rows = [count(1, 1)] * accepted + [count(1, 0)] * (10 - accepted)
    assert measure_acceptance_rate(rows).verdict == verdict
    assert measure_acceptance_rate([]).verdict == "poor"


def test_both_figures_are_means_over_places():
    found = measure_acceptance_rate([count(1, 1)], [0.0, 0.5])
    assert found.same_noise == pytest.approx((1 + 1 / 3) / 2)
    assert found.rejection == 0.75
    assert total_variation([0.5, 0.5, 0.0], [0.5, 0.0, 0.5]) == 0.5


def test_the_same_noise_accepts_at_least_what_the_bound_says():
    """The argmax of log p plus Gumbel noise, with the same noise for both, as target and draft model draw."""
    rng = np.random.default_rng(3)
    for _ in range(5):
        target, draft = rng.dirichlet(np.full(50, 0.3)), rng.dirichlet(np.full(50, 0.3))
        noise = rng.gumbel(size=(20_000, 50))
        drawn = [(np.log(p) + noise).argmax(axis=1) for p in (target, draft)]
        accepted = (drawn[0] == drawn[1]).mean()
        tv = total_variation(target, draft)
        assert (1 - tv) / (1 + tv) - 0.01 <= accepted <= 1 - tv + 0.01
