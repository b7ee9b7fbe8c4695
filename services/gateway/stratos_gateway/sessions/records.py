"""What a gateway and a decode worker tell each other, as plain records; the session's messages, translated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from stratos.common.errors import StratosError
from stratos.core.placement import WorkerRef
from stratos.core.requests.records import ChoiceState, FinishReason, PositionLogprobs, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.trace import TraceContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Starts one attempt of a request; choices with ``emitted_ids`` resume."""

    key: RequestKey
    handoff_id: str
    prompt_ids: Sequence[int]
    choices: tuple[ChoiceState, ...]
    sampling: SamplingParams
    seed: int
    model_digest: str
    adapter_digest: str
    adapter_uri: str
    cache_salt: bytes
    tenant: str
    priority_class: int
    prefill: tuple[WorkerRef, ...]
    trace: TraceContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Where a worker got a prompt's KV from; the fields the gateway uses."""

    num_cached_tokens: int
    num_transferred_tokens: int
    num_recomputed_tokens: int
    prefill_path: str


class AttemptSink(Protocol):
    """Where a session delivers the news of one attempt; called on the event loop, must not block."""

    @property
    def label(self) -> str:
        """The request's name for log lines."""

    def on_delta(
        self,
        index: int,
        offset: int,
        token_ids: Sequence[int],
        logprobs: Sequence[PositionLogprobs],
        finish_reason: FinishReason | None,
    ) -> None:
        """New tokens of one choice."""

    def on_prompt_logprobs(self, logprobs: Sequence[PositionLogprobs]) -> None:
        """Of the prompt's tokens from the second on; come with the first tokens, before them."""

    def on_receipt(self, receipt: Receipt) -> None:
        """Where the prompt was computed; comes with the first tokens."""

    def on_step_end(self) -> None:
        """All news of one message were delivered."""

    def on_error(self, error: StratosError) -> None:
        """The worker says that the request failed there, and is over."""

    def on_failure(self, error: StratosError) -> None:
        """News could not be handled; the worker still runs the attempt."""

    def on_lost(self, cause: str) -> None:
        """The session broke; ``cause`` is "broken" or "hang"."""
