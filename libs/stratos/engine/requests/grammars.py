"""Grammars of an engine: compiled once, a matcher per choice, a mask per sampled row."""

from __future__ import annotations

from collections.abc import Iterable

from stratos.common.clock import Clock
from stratos.common.errors import BadRequest
from stratos.core.requests.grammar import GrammarSpec
from stratos.core.requests.records import EngineRequest
from stratos.engine.contract.runner import RunnerInfo
from stratos.engine.grammar.compiler import GrammarCompiler
from stratos.engine.grammar.masks import MaskFiller, PendingMasks
from stratos.engine.grammar.matcher import GrammarMatcher
from stratos.engine.sequence import Sequence
from stratos.engine.settings import SchedulerConfig


class RequestGrammars:
    """One per engine; ``prepare`` may be called from any thread."""

    def __init__(self, info: RunnerInfo, config: SchedulerConfig, clock: Clock) -> None:
        self._compiler = GrammarCompiler(
            info.model_path,
            info.vocab_size,
            info.eos_token_ids,
            config.max_compiled_grammars,
            shares_forced=config.switches.shared_forced_tokens,
        )
        is_parallel = config.switches.parallel_grammar_masks
        is_parallel = info.overlap if is_parallel is None else is_parallel
        self._filler = MaskFiller(info.vocab_size, is_parallel=is_parallel, clock=clock)

    @property
    def num_compiled(self) -> int:
        return self._compiler.num_compiled

    def prepare(self, spec: GrammarSpec) -> None:
        """Compile a grammar ahead of the request that needs it; raises ``BadRequest``."""
        self._compiler.prepare(spec)

    def matchers(self, request: EngineRequest) -> dict[int, GrammarMatcher]:
        """A matcher for each unfinished choice, after what it has emitted; none without a grammar.

        Raises:
            BadRequest: the grammar cannot be compiled, or does not allow what was emitted.
        """
        spec = request.sampling.grammar
        if spec is None:
            return {}
        return {
            choice.index: self._compiler.matcher(spec, choice.emitted_ids)
            for choice in request.choices
            if not choice.finished
        }

    def accept(self, sequence: Sequence, token_id: int) -> None:
        """Advance the grammar of a sequence, if it has one, by the token that was sampled for it.

        Raises:
            BadRequest: the grammar became too complex.
        """
        if sequence.grammar is None:
            return
        try:
            sequence.grammar.accept(token_id)
        except BadRequest:
            assert sequence.request is not None
            spec = sequence.request.request.sampling.grammar
            assert spec is not None
            self._compiler.forget(spec)
            raise

    def start_masks(self, sampled: Iterable[Sequence]) -> PendingMasks | None:
        """Begin to fill the masks of sequences that are sampled next, and after each of their drafts; every other token
        of them must be known."""
        matchers = {
            (s.seq_id, num_drafted): matcher
            for s in sampled
            if s.grammar is not None
            for num_drafted, matcher in enumerate((s.grammar, *s.draft_grammars))
        }
        return self._filler.start(matchers) if matchers else None
