"""What a tenant's plan lets one request ask for."""

from __future__ import annotations

from collections.abc import Sequence

from stratos.common.errors import BadRequest
from stratos.core.requests.limits import check_prompt_length
from stratos.core.tenancy.plan import Plan
from stratos_gateway.openai.requests import GenerationOptions


def check_plan(options: GenerationOptions, prompts: Sequence[Sequence[int]], plan: Plan, prompt_param: str) -> None:
    """Refuse what the plan does not have.

    Raises:
        ContextLengthExceeded: a prompt is too long.
        BadRequest: too many choices, or too many output tokens asked for.
    """
    for prompt in prompts:
        check_prompt_length(len(prompt), plan.max_prompt_tokens, len(prompt) + 1, prompt_param)
    if options.n > plan.max_n:
        raise BadRequest(f"n must be at most {plan.max_n} with this plan", param="n")
    if plan.max_tokens is not None and (options.max_tokens or 0) > plan.max_tokens:
        raise BadRequest(f"max_tokens must be at most {plan.max_tokens} with this plan", param="max_tokens")
