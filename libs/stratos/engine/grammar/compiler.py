"""Compiled grammars by spec: a bounded cache that the step loop reads and a thread beside it fills."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer

from stratos.common.errors import BadRequest
from stratos.core.requests.grammar import GrammarSpec
from stratos.engine.grammar.forced_tokens import ForcedPath, ForcedTokens
from stratos.engine.grammar.matcher import GrammarMatcher
from stratos.text.grammar import compile_grammar, make_grammar_tokenizer


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A grammar, and what its requests have learned of it."""

    matcher: LLMatcher
    """At the beginning of an output; copied for each choice."""
    forced: ForcedTokens = field(default_factory=ForcedTokens)


class GrammarCompiler:
    """Makes matchers; any thread.

    Args:
        model_path: folder with ``tokenizer.json``, read when the first grammar comes; ``None`` refuses all grammars.
        vocab_size: of the model's output.
        eos_token_ids: allowed where a grammar may end.
        max_compiled: grammars kept; the least recently used one goes.
        shares_forced: masks of forced tokens are computed once for all requests of a grammar.
    """

    def __init__(
        self,
        model_path: Path | None,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        max_compiled: int,
        *,
        shares_forced: bool = True,
    ) -> None:
        self._model_path = model_path
        self._vocab_size = vocab_size
        self._eos_token_ids = tuple(eos_token_ids)
        self._max_compiled, self._shares_forced = max_compiled, shares_forced
        self._compiled: OrderedDict[GrammarSpec, CompiledGrammar] = OrderedDict()
        self._tokenizer: LLTokenizer | None = None
        self._lock = threading.Lock()
        self._tokenizer_lock = threading.Lock()

    @property
    def num_compiled(self) -> int:
        return len(self._compiled)

    def prepare(self, spec: GrammarSpec) -> None:
        """Compile a grammar, so that ``matcher`` need not.

        Raises:
            BadRequest: it cannot be compiled.
        """
        with self._lock:
            if spec in self._compiled:
                self._compiled.move_to_end(spec)
                return
        compiled = compile_grammar(spec, self._load_tokenizer())
        with self._lock:
            self._compiled[spec] = CompiledGrammar(compiled)
            while len(self._compiled) > self._max_compiled:
                self._compiled.popitem(last=False)

    def forget(self, spec: GrammarSpec) -> None:
        """Drop a compiled grammar: its matchers share a lexer, and one that ran out of room fails all of them."""
        with self._lock:
            self._compiled.pop(spec, None)

    def matcher(self, spec: GrammarSpec, emitted_ids: Sequence[int] = ()) -> GrammarMatcher:
        """A matcher after the tokens emitted so far, compiled now if it was not prepared.

        Raises:
            BadRequest: the grammar cannot be compiled, or does not allow the emitted tokens.
        """
        while True:
            with self._lock:
                compiled = self._compiled.get(spec)
                if compiled is not None:
                    path = ForcedPath(compiled.forced) if self._shares_forced else None
                    matcher = GrammarMatcher(compiled.matcher.deep_copy(), path=path)
                    break
            self.prepare(spec)
        matcher.replay(emitted_ids)
        return matcher

    def _load_tokenizer(self) -> LLTokenizer:
        with self._tokenizer_lock:
            if self._tokenizer is None:
                if self._model_path is None:
                    raise BadRequest("this engine has no tokenizer, so it takes no grammar", param="grammar")
                definition = (self._model_path / "tokenizer.json").read_text(encoding="utf-8")
                self._tokenizer = make_grammar_tokenizer(definition, self._vocab_size, self._eos_token_ids)
            return self._tokenizer
