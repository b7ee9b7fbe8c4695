"""Which request a continuation token is of: all that its tokens and texts depend on, as one hash."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from stratos.common.continuation_errors import ContinuationMismatch, ContinuationStale
from stratos.common.errors import BadRequest
from stratos.core.requests.continuation import ContinuationState
from stratos.core.tenant import Tenant
from stratos.text.output.parser import OutputShape
from stratos_gateway.answering.spec import GenerationSpec
from stratos_gateway.continuations.tokens import PARAM, ContinuationTokens
from stratos_gateway.models.catalogue import ModelTarget
from stratos_gateway.models.model_set import ModelSet
from stratos_gateway.openai.requests import GenerationBody, GenerationOptions


def can_go_on(
    tokens: ContinuationTokens | None, tenant: Tenant, body: GenerationBody, shape: OutputShape | None
) -> bool:
    """Whether another answer may go on behind the one to this request: tokens alone have to say where it stands, and
    a call of a tool that is cut is none that another answer could end."""
    options, is_plain = body.options, shape is None or (shape.syntax is None and shape.frame is None)
    told = options.num_logprobs, options.num_prompt_logprobs, options.num_echo_logprobs
    return (
        tokens is not None
        and is_plain
        and not (tenant.plan.content_policy or body.echoes_alone)
        and options.best is None
        and told == (None, None, None)
        and tokens.can_be_made(tenant.id)
    )


def open_continuation(
    tokens: ContinuationTokens | None, text: str, tenant: Tenant, target: ModelTarget, models: ModelSet
) -> ContinuationState:
    """The answer that a request goes on from.

    Raises:
        InvalidContinuation: the text is no token of the tenant, or was altered.
        ContinuationStale: the adapter is another one by now, or that revision of the model is served no more.
        BadRequest: this gateway has no tokens.
    """
    if tokens is None:
        raise BadRequest(f"{PARAM} is not supported by this server", param=PARAM, code="unsupported_parameter")
    state = tokens.open(tenant.id, text)
    revision = models.of_digest(state.model_digest)
    is_there = revision is not None and revision.base.name == target.served.base.name
    if not is_there or state.adapter_digest != target.adapter.digest:
        raise ContinuationStale(f"the model or the adapter of this {PARAM} is another one by now", param=PARAM)
    return state


def check_choices(state: ContinuationState, num_prompts: int, num_choices: int) -> None:
    """Refuse a request of another form than the one that the token is of; raises ``ContinuationMismatch``."""
    if [len(choices) for choices in state.choices] != [num_choices] * num_prompts:
        raise other_request()


def other_request() -> ContinuationMismatch:
    """Refusal of a request that is not the one that its token is of."""
    text = f"this {PARAM} is of another request: send the one that was cut again, with the token"
    return ContinuationMismatch(text, param=PARAM)


def request_binding(route: str, options: GenerationOptions, specs: Sequence[GenerationSpec]) -> str:
    """Hash of a request; how much of it may be generated is no part of it, and neither is a stream.

    Args:
        route: of its dialect.
        options: of its body.
        specs: one per prompt.
    """
    parts = [
        (spec.prompt_ids, replace(spec.sampling, max_tokens=1, min_tokens=0), spec.sampling.min_tokens,
         spec.continues_prompt, sorted(spec.shown_ids))
        for spec in specs
    ]  # fmt: skip
    text = repr((route, parts, options.n, options.stop, options.include_stop))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
