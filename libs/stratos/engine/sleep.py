"""Sleep of an engine: weights and pages are given back, everything else stays, and waking brings the same bits back.

    sleep   nothing is open -> blocks of the device leave the prefix cache, as changes that routers read -> runner
    wake    runner -> new work

Blocks in host memory and on disk stay: they were computed by the same weights, so they are as good afterwards.  So do
adapters, compiled grammars, and what was measured of steps and swaps.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

from stratos.common.errors import Busy, Draining
from stratos.engine.contract.runner import Runner
from stratos.engine.kv_cache.cache import KvCache
from stratos.engine.speculation.proposer import Proposer


class EngineSleep:
    """One per engine. Not for several threads at once; the step loop may run beside it, since it has no work.

    Args:
        runner: gives the memory back.
        proposer: of the engine; may have a model of its own.
        kv: forgets what the device held.
        has_work: whether something is open, or a step has still to tell of what was; called while ``changing`` is held.
        changing: held while state changes.
    """

    def __init__(
        self,
        runner: Runner,
        proposer: Proposer | None,
        kv: KvCache,
        has_work: Callable[[], bool],
        changing: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._runner, self._proposer, self._kv = runner, proposer, kv
        self._has_work, self._changing = has_work, changing
        self._is_awake = True

    def check_awake(self) -> None:
        """Raise ``Draining`` where the engine takes nothing."""
        if not self._is_awake:
            raise Draining("this engine sleeps; ask the router for a new placement")

    def sleep(self) -> int:
        """Free the memory of weights and pages; returns how many bytes. Asleep already: 0.

        Raises:
            Busy: something is open; nothing has changed.
            FeatureUnavailable: the runner, or the model of its drafts, cannot; it is awake.
        """
        with self._changing():
            if not self._is_awake:
                return 0
            # a copy of a hand-off that has ended may touch the pages still: its blocks are fenced until it returns
            if self._has_work() or self._kv.blocks.ledger().fenced:
                raise Busy("the engine has work and cannot sleep", after_s=1.0)
            self._is_awake = False
        try:
            freed = self._runner.sleep()
        except BaseException:
            self._is_awake = True
            raise
        with self._changing():
            self._kv.blocks.forget(self._kv.blocks.cache.hashes())
        return freed + self._sleep_proposer()

    def _sleep_proposer(self) -> int:
        """Sleep of the drafts' model; where it cannot, the runner, which sleeps already, is loaded again."""
        if self._proposer is None:
            return 0
        try:
            return self._proposer.sleep()
        except BaseException:
            self._on_own_thread(self._runner.wake)
            self._is_awake = True
            raise

    def wake(self) -> None:
        """Take memory and weights again. Awake already: nothing happens.

        Raises:
            InvalidCheckpoint: the weights are not there, or others; the engine must not be used again.
        """
        if self._is_awake:
            return
        self._on_own_thread(self._load)
        with self._changing():
            self._is_awake = True

    def _load(self) -> None:
        self._runner.wake()
        if self._proposer is not None:
            self._proposer.wake()

    def _on_own_thread(self, load: Callable[[], None]) -> None:
        """Loading computes with all threads of the steps: the team ends with the thread that has it."""
        with ThreadPoolExecutor(1, "engine-wake") as own:
            own.submit(load).result()
