"""State that continues a generation which ended before its time, exactly as if it had not been interrupted.

There is no hidden state to save.  Noise is a function of seed, choice and position; penalties, ``min_tokens`` and
``max_tokens`` count the emitted tokens; a grammar's matcher is replayed over them; KV is computed again.  So the
request as it was, the tokens it emitted and the identity of what computed them are the whole state.

Tenant, priority and deadline are not part of it: they are decided again, from the key of the client that asks.  This
record names no tenant, and it authenticates nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from stratos.core.adapter import AdapterRef
from stratos.core.kv import KvIdentity
from stratos.core.requests.records import ChoiceState, EngineRequest, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.terms import DEFAULT_TERMS, RequestTerms


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuationState:
    """A generation between two tokens."""

    prompt_ids: tuple[int, ...]
    choices: tuple[ChoiceState, ...]
    """All choices of the request; those that are not finished go on."""
    sampling: SamplingParams
    seed: int
    model_digest: str
    adapter: AdapterRef
    numerics_id: str
    """Elsewhere the continuation is right, but not bit by bit what would have come."""

    @classmethod
    def of(
        cls,
        request: EngineRequest,
        emitted: Mapping[int, Sequence[int]],
        identity: KvIdentity,
        *,
        exhausted: Collection[int],
    ) -> ContinuationState:
        """The state after an attempt.

        Args:
            request: the attempt; it may have been a continuation itself.
            emitted: tokens of the attempt by choice.
            identity: of the engine that ran it.
            exhausted: choices that ended for want of KV blocks; all others are finished.
        """
        choices = tuple(
            ChoiceState(
                index=choice.index,
                emitted_ids=(*choice.emitted_ids, *emitted.get(choice.index, ())),
                finished=choice.index not in exhausted,
            )
            for choice in request.choices
        )
        return cls(
            prompt_ids=request.prompt_ids,
            choices=choices,
            sampling=replace(request.sampling, num_prompt_logprobs=None),  # they came with the first token
            seed=request.seed,
            model_digest=identity.model_digest,
            adapter=request.terms.adapter,
            numerics_id=identity.numerics_id,
        )

    @property
    def can_go_on(self) -> bool:
        """Some choice is not finished."""
        return any(not choice.finished for choice in self.choices)

    def is_exact_on(self, identity: KvIdentity) -> bool:
        """An engine of this identity continues bit by bit."""
        is_same = (self.model_digest, self.numerics_id) == (identity.model_digest, identity.numerics_id)
        return is_same and identity.is_exact

    def request(self, key: RequestKey, terms: RequestTerms = DEFAULT_TERMS) -> EngineRequest:
        """The request that goes on; of ``terms`` all but the adapter counts, which is that of the state."""
        return EngineRequest(
            key=key,
            prompt_ids=self.prompt_ids,
            choices=self.choices,
            sampling=self.sampling,
            seed=self.seed,
            terms=replace(terms, adapter=self.adapter),
        )
