"""The fit keeps its active coefficients while they are the best: it is the one that a try of every set would find."""

from __future__ import annotations

import random

import pytest

from stratos.engine.scheduler.cost_model import StepCostModel, StepLoad


def coefficients_of(seed: int, *, tries_all: bool) -> list[tuple[float, ...]]:
    """The fit after each of some hundred steps: streams that grow, at times with a prompt, on a noisy machine."""
    rng, model, found = random.Random(seed), StepCostModel(), []
    start, streams = rng.randrange(4000), rng.choice((1, 8, 32))
    for _ in range(200):
        start += 1
        tokens = streams + (rng.randrange(1, 400) if rng.random() < 0.05 else 0)
        load = StepLoad(tokens, tokens * start)
        if tries_all:
            model.forget_subset()
        model.observe(load, (1e-3 + 2e-5 * tokens + 1e-9 * load.kv_tokens) * rng.lognormvariate(0, 0.2))
        found.append(tuple(model.coefficients))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_the_kept_coefficients_give_the_fit_that_a_try_of_every_set_gives(seed: int) -> None:
    kept, tried = coefficients_of(seed, tries_all=False), coefficients_of(seed, tries_all=True)
    for one, other in zip(kept, tried, strict=True):
        assert one == pytest.approx(other, rel=1e-6, abs=1e-15)
