"""Prefill jobs open at this worker as a source: engine events per leg, coalesced into state plus one wake-up.

What a job will wait and take is estimated from the time that the tokens of recent jobs took, so that its receiver can
go elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from stratos.common.errors import StratosError
from stratos.engine.contract.results import PrefillEventKind, StepResult

_MEMORY = 0.95
"""Weight of what was measured before a step against that step's own."""


class PrefillProgress:
    """How far one job of ``num_wanted`` tokens is. Belongs to the event loop."""

    def __init__(self, num_wanted: int) -> None:
        self._num_wanted = num_wanted
        self.num_cached_tokens = 0
        self.num_tokens = 0
        """KV of tokens [0, num_tokens) is in the pages."""
        self.is_ready = False
        self.is_done = False
        self.error: StratosError | None = None
        self.num_steps = 0
        """Steps of the engine that computed some of it."""
        self.began_s: float | None = None
        """Begin of the first of these steps, in monotonic seconds."""
        self.ended_s = 0.0
        """End of the last one so far."""
        self.device_ns = 0
        """Its share of these steps."""
        self._changed = asyncio.Event()

    @property
    def num_left(self) -> int:
        """Tokens that are still to be computed."""
        return 0 if self.is_done else self._num_wanted - self.num_tokens

    def count_step(self, result: StepResult) -> None:
        """A step computed a part of it."""
        if self.began_s is None:
            self.began_s = result.began_s
        self.ended_s = result.ended_s
        self.num_steps += 1

    def fail(self, error: StratosError) -> None:
        """It ends with ``error``."""
        self.error = error
        self.notify()

    def notify(self) -> None:
        """Wake the waiters."""
        self._changed.set()

    async def wait_ready(self) -> None:
        """Wait until the job runs next; raises the error that ended it."""
        while not self.is_ready:
            await self._wait()
        self._raise()

    async def wait_beyond(self, num_tokens: int) -> None:
        """Wait until more than ``num_tokens`` are computed or the job is done; raises the error that ended it."""
        while self.num_tokens <= num_tokens and not self.is_done:
            await self._wait()
        self._raise()

    async def _wait(self) -> None:
        self._raise()
        self._changed.clear()
        await self._changed.wait()

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error


class PrefillJobs:
    """Open jobs by leg, oldest first."""

    def __init__(self) -> None:
        self._jobs: dict[str, PrefillProgress] = {}
        self._recent_tokens = self._recent_s = 0.0

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, leg: str) -> bool:
        return leg in self._jobs

    def open(self, leg: str, num_wanted: int) -> PrefillProgress:
        """Begin to collect the events of ``leg``, which wants the KV of ``num_wanted`` tokens."""
        assert leg not in self._jobs, "legs are minted once"
        self._jobs[leg] = PrefillProgress(num_wanted)
        return self._jobs[leg]

    def close(self, leg: str) -> None:
        """Forget ``leg``."""
        self._jobs.pop(leg, None)

    def fail_all(self, error: StratosError) -> None:
        """End every job; their hand-offs end with ``error``."""
        for job in self._jobs.values():
            job.fail(error)

    def _ahead(self, leg: str) -> Iterator[PrefillProgress]:
        for other, job in self._jobs.items():
            if other == leg:
                return
            if not job.is_done:
                yield job

    def position(self, leg: str) -> int:
        """Jobs that came earlier and still have something to compute."""
        return sum(1 for _ in self._ahead(leg))

    def wait_s(self, leg: str) -> float:
        """Seconds that the jobs before it will take; 0 while nothing was measured."""
        return self.compute_s(sum(job.num_left for job in self._ahead(leg)))

    def compute_s(self, num_tokens: int) -> float:
        """Seconds that so many tokens of jobs take here; 0 while nothing was measured."""
        return num_tokens * self._recent_s / self._recent_tokens if self._recent_tokens else 0.0

    def on_step(self, result: StepResult) -> None:
        """Take over the prefill events of one engine step."""
        if num_computed := sum(result.shares.legs.values()):
            self._recent_tokens = _MEMORY * self._recent_tokens + num_computed
            self._recent_s = _MEMORY * self._recent_s + result.busy_ns / 1e9
        for leg, num_tokens in result.shares.legs.items():
            if (job := self._jobs.get(leg)) is not None:
                job.device_ns += result.share_ns(num_tokens)
        for event in result.prefill_events:
            job = self._jobs.get(event.leg)
            if job is None:
                continue
            if event.kind is PrefillEventKind.READY:
                job.is_ready = True
                job.num_cached_tokens = event.num_tokens
            elif event.num_tokens > job.num_tokens:
                job.count_step(result)
            job.num_tokens = max(job.num_tokens, event.num_tokens)
            job.is_done = job.is_done or event.kind is PrefillEventKind.DONE
            job.notify()
        for leg, error in result.prefill_errors.items():
            if (job := self._jobs.get(leg)) is not None:
                job.fail(error)
