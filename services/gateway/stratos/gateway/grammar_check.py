"""Compiles the grammars of requests before anything else is done for them, so that a bad one is answered with 400.

Compiling happens in one thread with bounded fuel (``stratos.text.grammar``), so neither a slow nor a hostile
text holds up the streams of others; verdicts are remembered.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from llguidance import LLTokenizer

from stratos.common.errors import BadRequest, Overloaded
from stratos.core.grammar import GrammarSpec
from stratos.gateway.grammar_fields import WantedGrammar
from stratos.text.grammar import compile_grammar, make_grammar_tokenizer

MAX_VERDICTS = 256
"""Grammars whose verdict is remembered: at most this many times 64 KiB."""
MAX_WAITING = 32
"""Grammars that may wait for the thread."""


class GrammarCheck:
    """Verdicts on grammars. Belongs to the event loop.

    Args:
        definition: content of ``tokenizer.json``.
        vocab_size: of the model.
        eos_token_ids: of the model.
    """

    def __init__(self, definition: str, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._definition = definition
        self._vocab_size = vocab_size
        self._eos_token_ids = tuple(eos_token_ids)
        self._tokenizer: LLTokenizer | None = None
        self._verdicts: OrderedDict[GrammarSpec, str] = OrderedDict()
        """What is wrong with a grammar; empty when nothing is."""
        self._num_waiting = 0
        self._pool = ThreadPoolExecutor(1, "grammar-check")

    async def check(self, wanted: WantedGrammar) -> None:
        """Refuse a grammar that cannot be compiled.

        Raises:
            BadRequest: with the field that asked for it.
            Overloaded: too many wait.
        """
        problem = self._verdicts.get(wanted.spec)
        if problem is None:
            problem = await self._compile(wanted.spec)
            self._verdicts[wanted.spec] = problem
            while len(self._verdicts) > MAX_VERDICTS:
                self._verdicts.popitem(last=False)
        else:
            self._verdicts.move_to_end(wanted.spec)
        if problem:
            raise BadRequest(problem, param=wanted.param)

    async def _compile(self, spec: GrammarSpec) -> str:
        if self._num_waiting >= MAX_WAITING:
            raise Overloaded("too many grammars wait to be compiled; try again")
        self._num_waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self._problem_of, spec)
        finally:
            self._num_waiting -= 1

    def _problem_of(self, spec: GrammarSpec) -> str:
        """Runs in the thread."""
        if self._tokenizer is None:
            self._tokenizer = make_grammar_tokenizer(self._definition, self._vocab_size, self._eos_token_ids)
        try:
            compile_grammar(spec, self._tokenizer)
        except BadRequest as error:
            return error.message
        return ""
