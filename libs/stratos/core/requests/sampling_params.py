"""How tokens are chosen: the one record that gateway, workers and engine share."""

from __future__ import annotations

from dataclasses import field

from stratos.common.changed import record
from stratos.core.requests.grammar import GrammarSpec
from stratos.core.requests.watermark import Watermark


@record(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of a request; validated by ``stratos.core.requests.limits`` before they get here.

    Order of effects on the logits: logit bias, penalties, watermark, bans (``min_tokens``, bad sequences, all but
    ``allowed_token_ids``), temperature, min-p, top-k, top-p; the token is the argmax of what remains plus
    counter noise (``stratos.core.rng``).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 is off."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    max_tokens: int = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    """Nothing else is sampled, end tokens included; empty is off."""
    bad_sequences: tuple[tuple[int, ...], ...] = ()
    """The last token of a sequence is banned where the output ends with the others; one of length 1 always is."""
    grammar: GrammarSpec | None = None
    """Form of the output; it ends the choice, regardless of ``min_tokens`` and ``ignore_eos``."""
    watermark: Watermark | None = None
    """Mark the output: adds to the logits after the penalties."""
    drafts_off: bool = False
    """Run it without drafts: the same tokens, one in each pass."""
    num_logprobs: int | None = None
    """Most likely tokens reported at each position; ``None`` means no logprobs at all."""
    num_prompt_logprobs: int | None = None
    """The same for the tokens of the prompt, the first of which has none; its KV is computed without prefix cache."""

    @property
    def is_greedy(self) -> bool:
        """Temperature 0: the noise is zero."""
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        """Some penalty needs the tokens seen so far."""
        return self.repetition_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0

    @property
    def needs_output_ids(self) -> bool:
        """The next token depends on the tokens emitted so far, beyond the model itself."""
        return (
            self.has_penalties
            or self.watermark is not None
            or any(len(sequence) > 1 for sequence in self.bad_sequences)
        )
