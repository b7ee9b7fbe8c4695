"""Refusals of a parsed request: more than its tenant's plan allows, or a grammar that cannot be used."""

from __future__ import annotations

from collections.abc import Sequence

from stratos.common.errors import BadRequest
from stratos.core.requests.limits import check_prompt_length, check_prompt_logprobs
from stratos.core.tenant import Tenant
from stratos_gateway.models.grammar_check import GrammarCheck
from stratos_gateway.openai.requests import GenerationOptions
from stratos_gateway.preparation.sampling import num_prompt_logprobs


async def check_request(
    options: GenerationOptions,
    prompts: Sequence[Sequence[int]],
    tenant: Tenant,
    grammars: GrammarCheck,
    prompt_param: str,
) -> None:
    """Refuse a request that may not run as it is.

    Raises:
        ContextLengthExceeded: a prompt is too long.
        BadRequest: too many choices, output tokens or log probabilities, or a grammar that cannot be used.
    """
    plan = tenant.plan
    for prompt in prompts:
        check_prompt_length(len(prompt), plan.max_prompt_tokens, len(prompt) + 1, prompt_param)
    if options.n > plan.max_n:
        raise BadRequest(f"n must be at most {plan.max_n} with this plan", param="n")
    if plan.max_tokens is not None and (options.max_tokens or 0) > plan.max_tokens:
        raise BadRequest(f"max_tokens must be at most {plan.max_tokens} with this plan", param="max_tokens")
    param = "prompt_logprobs" if options.num_echo_logprobs is None else "logprobs"
    check_prompt_logprobs(sum(map(len, prompts)), num_prompt_logprobs(options), param)
    if options.grammar is not None:
        await grammars.check(options.grammar.spec, options.grammar.param, tenant.name)
