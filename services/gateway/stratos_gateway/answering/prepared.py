"""A request that is ready to run: its names resolved, its texts encoded, its limits checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stratos.common.errors import StratosError
from stratos.core.ledger.usage import MeterTag
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.terms import RequestTerms
from stratos.core.trace import NO_TRACE, TraceContext
from stratos_gateway.http.exchange import Exchange
from stratos_gateway.openai.requests import GenerationBody, GenerationOptions
from stratos_gateway.openai.responses import Renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Whatever the route: the facts that steps need."""

    model: str
    """Name that the client uses."""
    operation: str
    """Its kind, in traces."""
    num_tokens: int
    """Tokens of its prompts and of its longest possible output."""
    num_sequences: int
    texts: Sequence[str]
    """Texts of its input, for content policies."""
    refusal: Callable[[], StratosError | None]
    """Why its model is not served any more."""

    def describe(self, exchange: Exchange) -> None:
        """Note in the access log, and in the trace, what is known before it runs."""
        exchange.facts.model = self.model


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSpec:
    """One prompt to generate from, checked and resolved."""

    terms: RequestTerms
    model_digest: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    trace: TraceContext = NO_TRACE
    session_key: int = 0
    """Hash of the client's own name for its session, salted; 0 for none."""
    continues_prompt: bool = False
    """The output's text goes on with the prompt's; else it stands by itself, as a chat message does."""
    meter: MeterTag | None = None
    """Tag that it is billed by; ``None`` is not billed."""
    can_be_convicted: bool = True
    """Whether the prompt may be refused later because workers were lost as it began; not so for the platform's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedGeneration(Prepared):
    """A request of a generation route."""

    body: GenerationBody
    specs: tuple[GenerationSpec, ...]
    """One per prompt."""
    renderer: Renderer

    @property
    def options(self) -> GenerationOptions:
        """Options that all generation routes have."""
        return self.body.options
