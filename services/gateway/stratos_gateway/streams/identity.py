"""Identity of a recorded answer: what makes it the same at every gateway."""

from __future__ import annotations

import time
from dataclasses import replace

from stratos.common.ids import new_id
from stratos_gateway.answering.request import ClientRequest, PreparedGeneration
from stratos_gateway.openai.rendering import AnswerIdentity
from stratos_gateway.streams.asking import derived_id, derived_seed


class EndTime:
    """Wall clock that stands once it was read: an answer says at every gateway when it ended."""

    def __init__(self) -> None:
        self._unix_s: float | None = None

    def set(self, unix_s: int) -> None:
        """It ended then."""
        self._unix_s = unix_s

    def __call__(self) -> float:
        """Seconds since the epoch."""
        if self._unix_s is None:
            self._unix_s = time.time()
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
    """A record has the answer's tokens: nothing of its prompt, and nothing that a content policy made of them."""
    options = request.prepared.options
    return request.screen is None and options.num_prompt_logprobs is None and options.num_echo_logprobs is None
