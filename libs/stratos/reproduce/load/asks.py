"""Requests of a load, and what becomes of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from stratos.core.adapter import AdapterRef
from stratos.core.requests.records import ChoiceState, EngineRequest, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.terms import RequestTerms

FIRST_TOKEN = 10
"""Ids below it may be special tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAsk:
    """One request: how long, and when."""

    num_prompt_tokens: int
    num_output_tokens: int
    arrival_s: float = 0.0
    adapter_digest: str = ""
    prompt_ids: tuple[int, ...] = ()
    """The prompt, in place of a random one."""
    ignore_eos: bool = True
    sampling: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0.0))

    def as_request(self, number: int, begin_s: float, vocab_size: int, seed: int) -> EngineRequest:
        """The engine's request; a random prompt shares no block with another number's."""
        rng = Random(f"{seed} {number}")
        first = number % (vocab_size - FIRST_TOKEN) + FIRST_TOKEN
        prompt = self.prompt_ids or (first, *_tokens(rng, self.num_prompt_tokens - 1, vocab_size))
        sampling = replace(self.sampling, max_tokens=self.num_output_tokens, ignore_eos=self.ignore_eos)
        return EngineRequest(
            key=RequestKey(f"r{number}", 0),
            prompt_ids=prompt,
            choices=(ChoiceState(index=0),),
            sampling=sampling,
            seed=seed + number,
            terms=RequestTerms(
                arrival_s=begin_s + self.arrival_s + number * 1e-9, adapter=AdapterRef(digest=self.adapter_digest)
            ),
        )


def _tokens(rng: Random, count: int, vocab_size: int) -> Sequence[int]:
    return [rng.randrange(FIRST_TOKEN, vocab_size) for _ in range(count)]


@dataclass(slots=True, kw_only=True)
class AskOutcome:
    """Times of one request."""

    arrived_s: float
    token_times_s: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """Log probabilities of the tokens under the model's own distribution, where the request asked for them."""

    @property
    def ttft_s(self) -> float:
        return self.token_times_s[0] - self.arrived_s

    @property
    def ended_s(self) -> float:
        return self.token_times_s[-1]

    @property
    def gaps_s(self) -> list[float]:
        """Between tokens."""
        return [later - earlier for earlier, later in zip(self.token_times_s, self.token_times_s[1:], strict=False)]
