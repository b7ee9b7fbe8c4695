"""Steps of the engine as they are collected: how long, how many sequences, how many tokens."""

from __future__ import annotations

from collections import deque

from prometheus_client import CollectorRegistry

from stratos.engine.contract.results import FAILED, DraftCount, StepResult
from stratos.rpc.instruments import Instruments, counter, gauge, histogram

WINDOW_S = 10.0
_STEP_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class StepMeter(Instruments):
    """Belongs to the event loop; one observation a step, none of a step that computed nothing."""

    # fmt: off
    _seconds = histogram(
        "stratos_engine_step_seconds", "Duration of a step of the engine that computed something.",
        buckets=_STEP_BUCKETS_S,
    )
    _batch = histogram(
        "stratos_engine_batch_size", "Sequences and prefill jobs in a step that computed something.",
        buckets=_BATCH_BUCKETS,
    )
    _computed = counter("stratos_engine_computed_tokens", "Tokens that went through the model, prompts included.")
    _sampled = counter("stratos_engine_output_tokens", "Tokens that the engine sampled, over all choices.")
    _drafted = counter(
        "stratos_engine_drafted_tokens", "Drafted tokens that steps verified.", "method", "place",
    )
    _accepted = counter(
        "stratos_engine_accepted_tokens", "Drafted tokens that the model drew, too.", "method", "place",
    )
    _cut = counter("stratos_engine_cut_tokens", "Drafted tokens that a grammar forbids.", "method")
    _failed = counter("stratos_engine_draft_failures", "Sequences whose proposer of drafts failed.")
    _draft_cost = counter("stratos_engine_draft_cost_seconds", "Time of drafting, and of verifying by what steps cost.")
    _draft_saved = counter("stratos_engine_draft_saved_seconds", "Time of steps that accepted tokens made needless.")
    _rate = gauge("stratos_decode_tokens_per_second", "Tokens sampled a second, over the last 10 s.")
    # fmt: on

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self._num_sampled = 0
        self._past: deque[tuple[float, int]] = deque()

    def on_step(self, result: StepResult) -> None:
        """Take note of a step."""
        if result.num_rows:
            self._seconds.observe(result.busy_ns / 1e9)
            self._batch.observe(result.num_rows)
        self._computed.inc(result.shares.num_tokens)
        num_sampled = result.num_sampled
        self._num_sampled += num_sampled
        self._sampled.inc(num_sampled)
        if result.drafts:
            self._count_drafts(result.drafts)
        if result.draft_cost_s or result.draft_saved_s:
            self._draft_cost.inc(result.draft_cost_s)
            self._draft_saved.inc(result.draft_saved_s)

    def _count_drafts(self, counts: list[DraftCount]) -> None:
        """By place in the draft, the first one is 1: acceptance falls with it."""
        for count in counts:
            if count.method == FAILED:
                self._failed.inc()
            for place in range(1, count.num_drafted + 1):
                self._drafted.labels(count.method, place).inc()
            for place in range(1, count.num_accepted + 1):
                self._accepted.labels(count.method, place).inc()
            if count.num_cut:
                self._cut.labels(count.method).inc(count.num_cut)

    def show_rate(self, now_s: float) -> None:
        """Set the throughput to that of the window that ends now, or of the time since the first call."""
        past = self._past
        past.append((now_s, self._num_sampled))
        while len(past) > 1 and past[1][0] <= now_s - WINDOW_S:
            past.popleft()
        began_s, num_before = past[0]
        self._rate.set((self._num_sampled - num_before) / (now_s - began_s) if now_s > began_s else 0.0)
