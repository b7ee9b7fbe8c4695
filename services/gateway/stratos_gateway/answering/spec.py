"""One prompt to generate from, as it is handed to this platform's workers."""

from __future__ import annotations

from stratos.common.changed import record
from stratos.core.ledger.usage import MeterTag
from stratos.core.placement import Placement
from stratos.core.requests.continuation import num_prior_tokens
from stratos.core.requests.records import ChoiceState, FinishReason
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.terms import RequestTerms
from stratos.core.trace import NO_TRACE, TraceContext


@record(frozen=True, slots=True, kw_only=True)
class GenerationSpec:
    """One prompt to generate from, checked and resolved."""

    terms: RequestTerms
    model_digest: str
    model: str = ""
    """Served name of the base model, a label."""
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    trace: TraceContext = NO_TRACE
    session_key: int = 0
    """Hash of the client's own name for its session, salted; 0 for none."""
    continues_prompt: bool = False
    """The output's text goes on with the prompt's; else it stands by itself, as a chat message does."""
    shown_ids: frozenset[int] = frozenset()
    """Special tokens that are text of the output: marks that its reader looks for."""
    meter: MeterTag | None = None
    """Tag that it is billed by; ``None`` is not billed."""
    promised_itl_us: int | None = None
    """p99 of the ITLs of its tenant's windows; ``None`` where none is promised."""
    request_id: str = ""
    """Id of the generation; empty draws one."""
    epoch: int = 1
    """Number of its owner, see ``AnswerIdentity``."""
    runs_at: Placement | None = None
    """Where its last owner had it run, and may run it still."""
    prior: tuple[ChoiceState, ...] = ()
    """Choices of an earlier answer that this one goes on from; empty begins them."""
    open_ends: frozenset[FinishReason] = frozenset()
    """Ends behind which another answer may go on."""
    can_be_convicted: bool = True
    """Whether the prompt may be refused later because workers were lost as it began; not so for the platform's own."""

    @property
    def num_prior_tokens(self) -> int:
        """Output tokens of the earlier answer, over the choices that go on."""
        return num_prior_tokens(self.prior)

    @property
    def is_over(self) -> bool:
        """Nothing of this prompt goes on."""
        return bool(self.prior) and all(choice.finished for choice in self.prior)

    @property
    def num_told_prompt_tokens(self) -> int:
        """Tokens of the prompt that this answer tells and is charged by: those of an earlier answer are its own."""
        return 0 if self.prior else len(self.prompt_ids)
