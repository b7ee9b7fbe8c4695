"""Identity of a recorded answer: what makes it the same at every gateway."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from stratos.common.ids import new_id
from stratos_gateway.answering.request import ClientRequest, PreparedGeneration
from stratos_gateway.openai.rendering import AnswerIdentity
from stratos_gateway.preparation.options import num_prompt_logprobs
from stratos_gateway.streams.asking import derived_id, derived_seed

_MOST_OF_PROMPTS = 1 << 15
"""Log probabilities of prompts in a record: more would hold up the event loop and Redis while they are written."""


class EndTime:
    """Wall clock that stands once it was read: an answer says at every gateway when it ended.

    Args:
        unix_s: seconds since the epoch.
    """

    def __init__(self, unix_s: Callable[[], float] = time.time) -> None:
        self._now = unix_s
        self._unix_s: float | None = None

    def set(self, unix_s: int) -> None:
        """It ended then."""
        self._unix_s = unix_s

    def __call__(self) -> float:
        """Seconds since the epoch."""
        if self._unix_s is None:
            self._unix_s = self._now()
        return self._unix_s


def new_identity(request: ClientRequest[PreparedGeneration], key: str) -> AnswerIdentity:
    """Identity of a new answer; with an idempotency key its seed and id are functions of it."""
    prepared, secret = request.prepared, request.tenant.cache_salt
    identity = replace(prepared.identity, request_ids=tuple(new_id("gen") for _ in prepared.specs))
    if not key:
        return identity
    seed = identity.seed if prepared.has_given_seed else derived_seed(secret, key)
    return replace(identity, seed=seed, answer_id=derived_id(secret, key, identity.answer_id))


def can_be_recorded(request: ClientRequest[PreparedGeneration]) -> bool:
    """Whether an answer would come again as it was.

    None does where a content policy looks at it: another policy may stand by then, and a classifier may say something
    else the second time.
    """
    num_tops = num_prompt_logprobs(request.prepared.options)
    num_prompt_tokens = 0 if num_tops is None else sum(len(spec.prompt_ids) for spec in request.prepared.specs)
    return request.screen is None and num_prompt_tokens * (1 + (num_tops or 0)) <= _MOST_OF_PROMPTS
