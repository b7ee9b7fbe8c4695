"""Tries the grammars of requests before anything else is done for them, so that a bad one is answered with 400.

It happens in a process of its own (``grammar_sandbox``), one grammar at a time, so neither a slow nor a hostile text
holds up the streams of others; verdicts are remembered.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from stratos.common.errors import BadRequest, Overloaded
from stratos.common.shed_reason import ShedReason
from stratos.core.requests.grammar import GrammarSpec
from stratos_gateway.models.grammar_sandbox import GrammarSandbox

MAX_VERDICTS = 256
"""Grammars whose verdict is remembered: at most this many times 64 KiB."""
MAX_WAITING = 512
"""Grammars that may wait; the process tries one at a time."""


@dataclass(slots=True)
class _Trial:
    """A grammar without a verdict, and how many requests wait for it."""

    verdict: asyncio.Future[str]
    num_waiting: int = 0


class GrammarCheck:
    """Verdicts on grammars. Belongs to the event loop.

    Tenants take turns, so one that sends many slow grammars waits for itself.

    Args:
        model_path: folder with ``tokenizer.json``.
        vocab_size: of the model.
        eos_token_ids: of the model.
    """

    def __init__(self, model_path: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self.sandbox = GrammarSandbox(model_path, vocab_size, eos_token_ids)
        self._verdicts: OrderedDict[GrammarSpec, str] = OrderedDict()
        """Problem of each grammar that was tried; empty when there is none."""
        self._trials: dict[GrammarSpec, _Trial] = {}
        self._turns: OrderedDict[str, deque[GrammarSpec]] = OrderedDict()
        """Grammars that wait, by tenant; the first one is next."""
        self._work: asyncio.Task[None] | None = None
        self._pool = ThreadPoolExecutor(1, "grammar-check")

    async def check(self, spec: GrammarSpec, param: str, tenant: str) -> None:
        """Refuse a grammar that cannot be used.

        Raises:
            BadRequest: with ``param``, the field that asked for it.
            Overloaded: too many wait, or the machine has no time for it.
        """
        problem = self._verdicts.get(spec)
        if problem is None:
            problem = await self._try(spec, tenant)
        else:
            self._verdicts.move_to_end(spec)
        if problem:
            raise BadRequest(problem, param=param)

    async def _try(self, spec: GrammarSpec, tenant: str) -> str:
        trial = self._trials.get(spec)
        if trial is None:
            if len(self._trials) >= MAX_WAITING:
                raise Overloaded("too many grammars wait to be checked; try again", reason=ShedReason.QUEUE_FULL)
            trial = self._trials[spec] = _Trial(asyncio.get_running_loop().create_future())
            self._turns.setdefault(tenant, deque()).append(spec)
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._run())
        trial.num_waiting += 1
        try:
            return await asyncio.shield(trial.verdict)
        finally:
            trial.num_waiting -= 1

    async def _run(self) -> None:
        """Try what waits, one tenant after the other; its request may have left by the time it is tried."""
        while self._turns:
            tenant, specs = self._turns.popitem(last=False)
            spec = specs.popleft()
            if specs:
                self._turns[tenant] = specs
            if self._trials[spec].num_waiting:
                running = asyncio.get_running_loop().run_in_executor(self._pool, self.sandbox.problem_of, spec)
                await asyncio.wait([running])
                self._end(self._trials.pop(spec), spec, running)
            else:
                self._trials.pop(spec).verdict.cancel()

    def _end(self, trial: _Trial, spec: GrammarSpec, done: asyncio.Future[str]) -> None:
        error = done.exception()
        if error is None:
            self._verdicts[spec] = done.result()
            while len(self._verdicts) > MAX_VERDICTS:
                self._verdicts.popitem(last=False)
            trial.verdict.set_result(done.result())
        elif trial.num_waiting:
            trial.verdict.set_exception(error)

    def close(self) -> None:
        """End the process; nothing may be checked afterwards."""
        self._pool.shutdown(cancel_futures=True)
        self.sandbox.close()
