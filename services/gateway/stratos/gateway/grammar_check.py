"""Tries the grammars of requests before anything else is done for them, so that a bad one is answered with 400.

It happens in a process of its own (``grammar_sandbox``), one grammar at a time, so neither a slow nor a hostile text
holds up the streams of others; verdicts are remembered.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stratos.common.errors import BadRequest, Overloaded
from stratos.core.grammar import GrammarSpec
from stratos.gateway.grammar_fields import WantedGrammar
from stratos.gateway.grammar_sandbox import GrammarSandbox

MAX_VERDICTS = 256
"""Grammars whose verdict is remembered: at most this many times 64 KiB."""
MAX_WAITING = 32
"""Grammars that may wait for the process."""


class GrammarCheck:
    """Verdicts on grammars. Belongs to the event loop.

    Args:
        model_path: folder with ``tokenizer.json``.
        vocab_size: of the model.
        eos_token_ids: of the model.
    """

    def __init__(self, model_path: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self.sandbox = GrammarSandbox(model_path, vocab_size, eos_token_ids)
        self._verdicts: OrderedDict[GrammarSpec, str] = OrderedDict()
        """What is wrong with a grammar; empty when nothing is."""
        self._num_waiting = 0
        self._pool = ThreadPoolExecutor(1, "grammar-check")

    async def check(self, wanted: WantedGrammar) -> None:
        """Refuse a grammar that cannot be used.

        Raises:
            BadRequest: with the field that asked for it.
            Overloaded: too many wait, or the machine has no time for it.
        """
        problem = self._verdicts.get(wanted.spec)
        if problem is None:
            problem = await self._try(wanted.spec)
            self._verdicts[wanted.spec] = problem
            while len(self._verdicts) > MAX_VERDICTS:
                self._verdicts.popitem(last=False)
        else:
            self._verdicts.move_to_end(wanted.spec)
        if problem:
            raise BadRequest(problem, param=wanted.param)

    async def _try(self, spec: GrammarSpec) -> str:
        if self._num_waiting >= MAX_WAITING:
            raise Overloaded("too many grammars wait to be checked; try again")
        self._num_waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self.sandbox.problem_of, spec)
        finally:
            self._num_waiting -= 1

    def close(self) -> None:
        """End the process; nothing may be checked afterwards."""
        self._pool.shutdown(cancel_futures=True)
        self.sandbox.close()
