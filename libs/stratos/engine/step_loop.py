"""One step of an engine: plan -> launch -> collect and retire -> sample, with no step in flight between calls or one.

    no overlap   plan k+1, launch k+1, sample k+1, collect k+1, retire k+1
    overlap      plan k+1, launch k+1, collect k, retire k, sample k+1            (k was launched by the call before)

With overlap the host plans and retires while the device computes.  What a step sampled is unknown when the next one is
planned: a decoding row continues with a placeholder, the end of a request is seen one step late and the row it has by
then is dropped.  Sampling comes after the step before has retired, so masks and penalties see every token.

A step that raises is taken apart: its rows run again alone, those that raise again fail, the others go on.  Only a
runner that computes nothing at all any more ends the loop.  Owns the numbering of plans and what is in flight; what a
step means for requests, jobs and memory is in ``step_tracker``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

from stratos.engine.contract.plan import PlanRow, StepPlan, StepTokens
from stratos.engine.contract.results import StepResult
from stratos.engine.contract.runner import Runner
from stratos.engine.grammar.masks import Masks
from stratos.engine.slow_steps import SlowSteps
from stratos.engine.speculation.planner import DraftPlanner
from stratos.engine.speculation.proposer import Proposer
from stratos.engine.step_tracker import RAISED, LaunchedRow, LaunchedStep, StepTracker

_log = logging.getLogger(__name__)


class StepLoop:
    """Drives ``runner`` step by step.

    Args:
        overlap: a step is in flight between two calls; not with a ``proposer``.
        changing: held while state changes; other threads read them.
        proposer: drafts tokens for rows.
    """

    def __init__(
        self,
        runner: Runner,
        tracker: StepTracker,
        slow_steps: SlowSteps,
        overlap: bool,
        changing: Callable[[], AbstractContextManager[None]],
        proposer: Proposer | None = None,
    ) -> None:
        assert proposer is None or not overlap, "what a drafted row adds must be known before the next plan"
        self.num_retired = 0
        runner.user = self._user = object()
        self._runner, self._tracker, self._overlap, self._changing = runner, tracker, overlap, changing
        self._slow_steps, self._clock, self._kv = slow_steps, tracker.context.clock, tracker.context.kv
        self._drafts = (
            None
            if proposer is None
            else DraftPlanner(
                proposer, tracker.context, runner, is_adaptive=tracker.context.config.speculation.is_adaptive
            )
        )
        self._collected_s = self._clock.now()
        self._num_plans = 0
        self.in_flight: LaunchedStep | None = None
        """Launched and not collected."""

    @property
    def is_in_flight(self) -> bool:
        """A launched step waits for being collected."""
        return self.in_flight is not None

    def step(self) -> StepResult:
        """Plan and launch a step; collect it, or with overlap the one before.

        Raises:
            RuntimeError: another engine was made over the runner since, and writes the same pages.
        """
        if self._runner.user is not self._user:
            raise RuntimeError("another engine was made over this runner: its pages are no longer this one's")
        result = StepResult(step=self.num_retired)
        with self._changing():
            following = self._plan(result)
        result.is_idle = following is None and self.in_flight is None
        self._run(following, result)
        with self._changing():
            jobs = self._tracker.jobs
            result.prefill_events, jobs.events = jobs.events, []
        return result

    def forget_tenant(self, tenant: str) -> None:
        """Drop what drafts remember of a tenant."""
        if self._drafts is not None:
            self._drafts.forget_tenant(tenant)

    def _plan(self, result: StepResult) -> LaunchedStep | None:
        scheduler = self._tracker.context.scheduler
        self._kv.expire_pins()
        self._kv.tier.begin_plan(self._num_plans)
        decision = scheduler.schedule()
        self._tracker.apply(decision, result)
        if self._drafts is not None:
            self._drafts.add(decision.scheduled, result)
        step = self._tracker.enter(self._num_plans, decision.scheduled, result)
        if not step:
            return None
        self._num_plans += 1
        return step

    def _run(self, following: LaunchedStep | None, result: StepResult) -> None:
        ahead, self.in_flight = self.in_flight, None
        is_launched = following is not None and self._launch(following)
        if ahead is not None and not self._collect(ahead, result):
            if following is not None:
                self._runner.abandon()
                with self._changing():
                    self._tracker.withdraw(following)  # planned again from what is known then
            self._recover(ahead, result)
        elif following is None:
            return
        elif not is_launched or not self._sample(following):
            self._recover(following, result)
        elif self._overlap:
            self.in_flight = following
        elif not self._collect(following, result):
            self._recover(following, result)

    # -- the runner --------------------------------------------------------------------------------

    def _launch(self, step: LaunchedStep) -> bool:
        step.began_s = self._clock.now()
        try:
            if not self._overlap:  # every token is known already: the masks are filled beside the forward pass
                step.masks = self._tracker.start_masks(step.rows)
            step.handle = self._runner.launch(step.plan)
        except Exception:
            _log.exception("step %d cannot be launched", step.number)
            return False
        return True

    def _sample(self, step: LaunchedStep) -> bool:
        try:
            masks = self._tracker.start_masks(step.rows) if self._overlap else step.masks
            filled = masks.wait() if masks is not None else None
            self._runner.sample(step.handle, filled, self._tracker.late_specs(step))
        except Exception:
            _log.exception("step %d cannot be sampled", step.number)
            return False
        return True

    def _collect(self, step: LaunchedStep, result: StepResult) -> bool:
        try:
            tokens = self._runner.collect(step.handle)
        except Exception:
            _log.exception("step %d cannot be collected", step.number)
            return False
        began_s = max(step.began_s, self._collected_s)  # it waits on the device for the one before
        self._collected_s = self._clock.now()
        seconds = self._collected_s - began_s
        result.began_s, result.ended_s = began_s, self._collected_s
        self._slow_steps.observe(seconds)
        scheduler = self._tracker.context.scheduler
        self._kv.tier.costs.observe_prefill(step.num_prompt_tokens, step.num_tokens, seconds - tokens.swap_s)
        if self._tracker.context.config.step_time_budget_ms:
            scheduler.cost.observe(step.load, seconds - tokens.swap_s)
        self._retire(step, tokens, result)
        if self._drafts is not None and step.num_tokens == len(step.rows) + step.num_drafted:
            self._drafts.observe(step, seconds - tokens.swap_s, result)
        return True

    def _retire(self, step: LaunchedStep, tokens: StepTokens, result: StepResult) -> None:
        with self._changing():
            self.num_retired += 1
            self._tracker.retire(step, tokens, result)

    # -- recovering --------------------------------------------------------------------------------

    def _recover(self, step: LaunchedStep, result: StepResult) -> None:
        """Run the rows of a step that raised again, each alone; those that raise again fail.

        Raises:
            Exception: what the runner raises on a row without any request: nothing can be computed any more.
        """
        self._runner.abandon()
        if step.masks is not None:
            with contextlib.suppress(Exception):  # logged, if it is why the step failed
                step.masks.wait()  # the matchers are filled again below
        with self._changing():
            self._tracker.withdraw(step)
            wanted = [(launched.sequence, launched.own_count) for launched in step.rows if launched.is_current]
            again = self._tracker.enter(step.number, wanted, result)
        tokens = StepTokens()
        if again.copies or again.swaps or again.ended:
            tokens = self._run_now(dataclasses.replace(again.plan, rows=()))
        for launched in again.rows:
            self._run_alone(step.number, launched, tokens)
        result.began_s, result.ended_s = step.began_s, self._clock.now()
        self._retire(again, tokens, result)
        if again.rows and len(tokens.errors) == len(again.rows):
            self._probe(step.number)

    def _run_alone(self, number: int, launched: LaunchedRow, tokens: StepTokens) -> None:
        try:
            masks = self._tracker.start_masks([launched])
            alone = self._run_now(
                StepPlan(step=number, rows=(launched.row,)), masks.wait() if masks is not None else None
            )
        except Exception:
            _log.exception("a row of step %d fails alone, too", number)
            self._runner.abandon()
            tokens.errors[launched.row.seq_id] = RAISED
            return
        tokens.tokens += alone.tokens
        tokens.pooled += alone.pooled
        tokens.prompt_logprobs |= alone.prompt_logprobs
        tokens.errors |= alone.errors

    def _run_now(self, plan: StepPlan, masks: Masks | None = None) -> StepTokens:
        handle = self._runner.launch(plan)
        self._runner.sample(handle, masks)
        return self._runner.collect(handle)

    def _probe(self, number: int) -> None:
        """Compute a token of no request: raises when the runner, and not some request, is broken."""
        with self._changing():
            block = self._kv.blocks.allocate(1)
        if block is None:
            return
        row = PlanRow(seq_id=-1, token_ids=(0,), start=0, block_table=tuple(self._kv.blocks.page_ids(block)))
        self._run_now(StepPlan(step=number, rows=(row,)))
        with self._changing():
            self._kv.blocks.release(block)
